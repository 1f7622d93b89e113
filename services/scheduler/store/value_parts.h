// Values of any size in a store that takes no large ones: a part of a value has a key of its own,
// directly behind the value's. Pure. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/scheduler/store/store.h"

namespace addend {

class ValueParts {
 public:
  explicit ValueParts(size_t most_bytes) : most_bytes_(most_bytes) {}

  // The writes that carry out `write`, which is the last of its key: the value's parts, and the
  // deletion of parts that only its former value had.
  std::vector<StoreWrite> Split(const StoreWrite& write);

  // The entries whose parts are `entries`, the content of the store, ascending by key. DATA_LOSS: a
  // part is missing.
  absl::StatusOr<std::vector<StoreEntry>> Join(std::string_view store,
                                               std::vector<StoreEntry> entries);

 private:
  const size_t most_bytes_;
  std::map<std::string, size_t, std::less<>> parts_;  // of each value that has several parts
};

}  // namespace addend
