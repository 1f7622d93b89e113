// The state that the scheduler needs after a restart: an ordered map from key to value, changed in
// atomic batches. record_keys.h defines the keys.
//
// Not thread-safe: the owner (the scheduler service) serialises all calls. Calls block on the
// disk or the network.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace addend {

struct StoreWrite {
  std::string key;
  std::optional<std::string> value;  // empty: the key is deleted
};

using StoreEntry = std::pair<std::string, std::string>;

class Store {
 public:
  // How a scheduler becomes the only scheduler that writes.
  struct Leadership {
    std::string name;    // of this scheduler, for the others' logs; unique
    absl::Duration ttl;  // after so long without a sign of life another scheduler may lead
    std::function<bool()> give_up;  // asked many times a second while it stands by
    // The leader that it waits for, whenever that changes; empty: nobody leads yet. From Lead()'s
    // thread.
    std::function<void(const std::string& leader)> on_standing_by = nullptr;
    // It leads no more; from a thread of the store, at most once. The process has to end.
    std::function<void(absl::Status)> on_lost;
  };

  virtual ~Store() = default;

  // To be called first, once: waits until this scheduler leads. CANCELLED: `give_up`. A store of a
  // single scheduler returns at once.
  virtual absl::Status Lead(const Leadership& leadership) {
    (void)leadership;
    return absl::OkStatus();
  }

  // Everything, ascending by key.
  virtual absl::StatusOr<std::vector<StoreEntry>> Load() = 0;
  // All of `writes`, in their order, or nothing. When it returns OK they outlive this process.
  virtual absl::Status Apply(std::span<const StoreWrite> writes) = 0;
  // As the user wrote it: "sqlite:/var/lib/addend/scheduler.db".
  virtual std::string Describe() const = 0;
};

// `where`: "memory", "sqlite:PATH", "etcd:HOST:PORT...", "kubernetes[:[NAMESPACE/]NAME]", or empty
// for the default database.
// INVALID_ARGUMENT for anything else, PERMISSION_DENIED (exit status 77) if the file cannot be
// opened, FAILED_PRECONDITION if it is another process's or no database of ours.
// `etcd`: all but the endpoints.
struct EtcdAccess;
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view where, const EtcdAccess& etcd);
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view where);

}  // namespace addend
