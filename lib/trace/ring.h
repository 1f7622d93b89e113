// The newest records of one thread: always on, of a fixed size, the oldest overwritten. Belongs to
// that thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace addend {

template <typename Record>
class TraceRing {
  static_assert(std::is_trivially_copyable_v<Record>);

 public:
  // Memory is taken as records come: pages that were never written cost nothing.
  explicit TraceRing(size_t capacity)
      : capacity_(capacity), records_(std::make_unique_for_overwrite<Record[]>(capacity)) {}

  void Add(const Record& record) { records_[added_++ % capacity_] = record; }
  void Clear() { added_ = 0; }
  size_t size() const { return added_ < capacity_ ? static_cast<size_t>(added_) : capacity_; }
  // The newest first; ends when `visit` returns false.
  template <typename Visit>
  void NewestFirst(Visit visit) const {
    for (uint64_t i = 0; i < size(); ++i) {
      if (!visit(records_[(added_ - 1 - i) % capacity_])) return;
    }
  }

 private:
  const size_t capacity_;
  const std::unique_ptr<Record[]> records_;
  uint64_t added_ = 0;
};

}  // namespace addend
