// What one job has of a server's memory: its accumulators and the contributions that came before
// their turn, each under the job's own limit and the server's. Thread-safe; shared by all shards.
//
// Jobs share what no accumulators take in equal parts: one that keeps more early contributions than
// its part is asked for them again, so that none can take the room of all others.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "lib/summation/memory_budget.h"

namespace addend {

class JobMemory {
 public:
  // `budget` outlives it. `limit` 0: none but the server's.
  JobMemory(MemoryBudget* budget, uint64_t limit)
      : budget_(budget), limit_(limit == 0 ? UINT64_MAX : limit) {
    budget_->AddJob();
  }
  ~JobMemory() { budget_->RemoveJob(); }
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // For the accumulators of a tensor, which come before early contributions; one at a time.
  // RESOURCE_EXHAUSTED says which limit has no room, and the numbers.
  absl::Status Reserve(std::string_view tensor, uint64_t bytes);
  void Release(uint64_t bytes) {
    reserved_.fetch_sub(bytes, std::memory_order_relaxed);
    budget_->Release(bytes);
  }

  // For an early contribution, beside what the server's budget says of it. Shards may pass the part
  // together, by as much as each takes at a time.
  bool TryKeep(uint64_t bytes) {
    if (early_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= Part()) return true;
    LetGo(bytes);
    return false;
  }
  void LetGo(uint64_t bytes) { early_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Other jobs, or accumulators, have made its part smaller: some have to be dropped.
  bool over_part() const { return early_.load(std::memory_order_relaxed) > Part(); }

 private:
  uint64_t free() const { return limit_ - std::min(limit_, reserved_.load()); }
  uint64_t Part() const { return std::min(free(), budget_->part()); }

  MemoryBudget* const budget_;
  const uint64_t limit_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> early_{0};
};

}  // namespace addend
