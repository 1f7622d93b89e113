// The memory limit of a server: accumulators, reserved at declaration, and contributions that came
// before their turn. Thread-safe; shared by all shards.
#pragma once

#include <atomic>
#include <cstdint>

namespace addend {

class MemoryBudget {
 public:
  // 0: no limit.
  explicit MemoryBudget(uint64_t limit) : limit_(limit == 0 ? UINT64_MAX : limit) {}

  // False when it would pass the limit.
  bool TryTake(uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes)) {
    }
    return true;
  }
  void Give(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  uint64_t free() const { return limit_ == UINT64_MAX ? UINT64_MAX : limit_ - used(); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> peak_{0};
};

}  // namespace addend
