// A job's part of a server's memory: accumulators, and contributions that came before their turn,
// both under the job's own limit and the server's. Thread-safe; shared by all shards.
//
// The memory beside the accumulators is shared by the jobs in equal parts. A job that keeps more
// early contributions than its part has to send some again, so that no job can take the memory of
// all others.
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
  // `budget` outlives this object. `limit` 0: only the server's limit.
  JobMemory(MemoryBudget* budget, uint64_t limit)
      : budget_(budget), limit_(limit == 0 ? UINT64_MAX : limit) {
    budget_->AddJob();
  }
  ~JobMemory() { budget_->RemoveJob(); }
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // For the accumulators of a tensor, which have precedence over early contributions. A single
  // thread at a time. RESOURCE_EXHAUSTED names the limit and the numbers.
  absl::Status Reserve(std::string_view tensor, uint64_t bytes);
  void Release(uint64_t bytes) {
    reserved_.fetch_sub(bytes, std::memory_order_relaxed);
    budget_->Release(bytes);
  }

  // For an early contribution, in addition to the server's budget. Shards that take memory at the
  // same time may together exceed the part, by a buffer for each shard.
  bool TryKeep(uint64_t bytes) {
    if (early_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= Part()) return true;
    LetGo(bytes);
    return false;
  }
  void LetGo(uint64_t bytes) { early_.fetch_sub(bytes, std::memory_order_relaxed); }
  // For a copy of an asynchronous value above the reserved copies, until GiveCopy(). Counts as an
  // early contribution, against the server's budget too.
  bool TryTakeCopy(uint64_t bytes) {
    if (!TryKeep(bytes)) return false;
    if (budget_->TryTake(bytes)) return true;
    LetGo(bytes);
    return false;
  }
  void GiveCopy(uint64_t bytes) {
    budget_->Give(bytes);
    LetGo(bytes);
  }
  // Other jobs, or accumulators, have made the job's part smaller: early contributions have to be
  // dropped.
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
