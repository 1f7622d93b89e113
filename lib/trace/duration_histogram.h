// How long something took, counted in buckets whose bounds double. Cheap enough for the hot path;
// belongs to one thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace addend {

class DurationHistogram {
 public:
  // Upper bounds: 2^15 ns (33 us), 2^16 ns, ... 2^35 ns (34 s); one more bucket for what is longer.
  static constexpr int kFirstBit = 15;
  static constexpr size_t kBounds = 21;
  static constexpr int64_t BoundNs(size_t bucket) { return int64_t{1} << (kFirstBit + bucket); }

  // A negative duration counts as none.
  void Observe(int64_t ns) {
    const uint64_t at_least_0 = ns < 0 ? 0 : static_cast<uint64_t>(ns);
    ++counts_[BucketOf(at_least_0)];
    sum_ns_ += at_least_0;
  }
  void Add(const DurationHistogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ns_ += other.sum_ns_;
  }

  // Of each bucket alone; the last is that of the longest.
  const std::array<uint64_t, kBounds + 1>& counts() const { return counts_; }
  uint64_t sum_ns() const { return sum_ns_; }
  uint64_t count() const {
    uint64_t all = 0;
    for (const uint64_t count : counts_) all += count;
    return all;
  }

 private:
  // The first bucket whose bound is not less.
  static size_t BucketOf(uint64_t ns) {
    const int bits = ns == 0 ? 0 : std::bit_width(ns - 1);
    if (bits <= kFirstBit) return 0;
    const auto bucket = static_cast<size_t>(bits - kFirstBit);
    return bucket < kBounds ? bucket : kBounds;
  }

  std::array<uint64_t, kBounds + 1> counts_{};
  uint64_t sum_ns_ = 0;
};

}  // namespace addend
