// Where the scheduler keeps what a restart needs: an ordered map from key to value, changed in
// atomic batches. What the keys mean is records.h's business.
//
// Not thread-safe: the owner (the scheduler service) serialises all calls. Calls block on the disk.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend {

struct StoreWrite {
  std::string key;
  std::optional<std::string> value;  // none: the key is deleted
};

using StoreEntry = std::pair<std::string, std::string>;

class Store {
 public:
  virtual ~Store() = default;

  // Everything, ascending by key.
  virtual absl::StatusOr<std::vector<StoreEntry>> Load() = 0;
  // All of `writes`, in their order, or none of them. When it returns OK they outlive this process.
  virtual absl::Status Apply(std::span<const StoreWrite> writes) = 0;
  // As the user wrote it: "sqlite:/var/lib/addend/scheduler.db".
  virtual std::string Describe() const = 0;
};

// `where`: "memory", "sqlite:PATH", or empty for the default database. INVALID_ARGUMENT for
// anything else, PERMISSION_DENIED (exit status 77) if the file cannot be opened,
// FAILED_PRECONDITION if it is another process's or no database of ours.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view where);

}  // namespace addend
