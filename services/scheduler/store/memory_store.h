// A store that ends with its process: for tests and for clusters that need not survive a restart.
#pragma once

#include <map>

#include "services/scheduler/store/store.h"

namespace addend {

class MemoryStore : public Store {
 public:
  absl::StatusOr<std::vector<StoreEntry>> Load() override;
  absl::Status Apply(std::span<const StoreWrite> writes) override;
  std::string Describe() const override { return "memory"; }

 private:
  std::map<std::string, std::string> entries_;
};

}  // namespace addend
