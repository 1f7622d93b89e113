// A store that ends with its process.
#include "services/scheduler/store/memory_store.h"

namespace addend {

absl::StatusOr<std::vector<StoreEntry>> MemoryStore::Load() {
  return std::vector<StoreEntry>(entries_.begin(), entries_.end());
}

absl::Status MemoryStore::Apply(std::span<const StoreWrite> writes) {
  for (const StoreWrite& write : writes) {
    if (write.value) {
      entries_[write.key] = *write.value;
    } else {
      entries_.erase(write.key);
    }
  }
  return absl::OkStatus();
}

}  // namespace addend
