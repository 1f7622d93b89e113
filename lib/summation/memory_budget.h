// The memory limit of a server: accumulators, reserved at declaration, and contributions that came
// before their turn. Thread-safe; shared by all shards.
//
// Accumulators have precedence: a reservation counts against other reservations only. It may push
// the memory in use over the limit, until early contributions have been dropped (their nodes send
// them again).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace addend {

class MemoryBudget {
 public:
  // 0: no limit.
  explicit MemoryBudget(uint64_t limit) : limit_(limit == 0 ? UINT64_MAX : limit) {}

  // For accumulators. False if all reservations together would exceed the limit.
  bool TryReserve(uint64_t bytes) { return TryAdd(&reserved_, bytes, limit_); }
  void Release(uint64_t bytes) { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }

  // For an early contribution. False if it does not fit beside everything else.
  bool TryTake(uint64_t bytes) { return TryAdd(&early_, bytes, free()); }
  void Give(uint64_t bytes) { early_.fetch_sub(bytes, std::memory_order_relaxed); }
  // A reservation has taken the place of early contributions, which have to be dropped.
  bool over_limit() const { return used() > limit_; }

  // The jobs that share the memory, and each job's part for early contributions (job_memory.h).
  void AddJob() { jobs_.fetch_add(1, std::memory_order_relaxed); }
  void RemoveJob() { jobs_.fetch_sub(1, std::memory_order_relaxed); }
  uint64_t part() const { return free() / std::max<uint64_t>(1, jobs_.load()); }

  uint64_t limit() const { return limit_; }
  uint64_t used() const { return reserved_.load() + early_.load(); }
  uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  // Bytes that can still be reserved; UINT64_MAX: no limit.
  uint64_t free() const { return limit_ == UINT64_MAX ? UINT64_MAX : limit_ - reserved_.load(); }

 private:
  bool TryAdd(std::atomic<uint64_t>* counter, uint64_t bytes, uint64_t limit) {
    uint64_t value = counter->load(std::memory_order_relaxed);
    do {
      if (value > limit || bytes > limit - value) return false;
    } while (!counter->compare_exchange_weak(value, value + bytes));
    const uint64_t now = std::min(used(), limit_);
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    return true;
  }

  const uint64_t limit_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> early_{0};
  std::atomic<uint64_t> peak_{0};
  std::atomic<uint64_t> jobs_{0};
};

}  // namespace addend
