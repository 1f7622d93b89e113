// Passes over the accumulator: as few as the memory of the contributions allows.
#include "lib/summation/round_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/reduce/reduce.h"

namespace addend {
namespace {

// The type in which sums are added to each other.
DType AccumulatorOf(DType dtype) {
  return SizeOf(dtype) == AccumulatorSizeOf(dtype) ? dtype : DType::kFloat32;
}

}  // namespace

void RoundSum::Add(uint32_t position, NodeId node, const EncodedBytes& data,
                   std::unique_ptr<EarlyContribution> owner, const Memory& memory) {
  MoveTo(position / kSumRadix, memory);
  if (data.bytes.data() == memory.accumulator) {
    started_[0] = true;
  } else {
    terms_.push_back({data, node, std::move(owner)});
  }
}

void RoundSum::AddGroup(uint32_t position, Bytes sum, const Memory& memory) {
  MoveTo(position / kSumRadix, memory);
  AddTo(/*level=*/1, sum, memory);
}

void RoundSum::AddSpan(const SumSpan& span, Bytes sum, const Memory& memory) {
  const auto entry = EntryOf(span, positions_);
  ADDEND_CHECK(entry.has_value(), "the tree has the span's sum");
  MoveTo(span.first / kSumRadix, memory);
  AddTo(entry->level, sum, memory);
}

// A term of the sum of the level, which is open.
void RoundSum::AddTo(uint32_t level, Bytes sum, const Memory& memory) {
  const void* const added[] = {sum.data()};
  std::byte* const whole = SumOf(level, memory);
  if (started_[level]) {
    Accumulate(AccumulatorOf(dtype_), op_, whole, added, elements_);
  } else {
    std::memcpy(whole, sum.data(), elements_ * AccumulatorSizeOf(dtype_));
  }
  started_[level] = true;
}

// The last level's sum becomes the result.
std::byte* RoundSum::SumOf(uint32_t level, const Memory& memory) const {
  if (level + 1 == levels_) return memory.accumulator;
  return memory.partial + level * elements_ * AccumulatorSizeOf(dtype_);
}

std::vector<EncodedBytes> RoundSum::Payloads() const {
  std::vector<EncodedBytes> payloads;
  payloads.reserve(terms_.size());
  for (const Term& term : terms_) payloads.push_back(term.data);
  return payloads;
}

void RoundSum::MoveTo(uint32_t leaf, const Memory& memory) {
  if (leaf == leaf_) return;
  uint32_t level = 0;
  for (uint32_t left = std::exchange(leaf_, leaf); left != leaf; ++level) {
    left /= kSumRadix;
    leaf /= kSumRadix;
  }
  Carry(level, memory);
}

void RoundSum::Carry(uint32_t level, const Memory& memory) {
  const auto began = started_.begin();
  const bool anything = !terms_.empty() || std::find(began, began + level, true) != began + level;
  if (!anything) return;
  if (terms_.empty()) {
    CarryTile(level, memory, 0, elements_, {});
  } else {
    ForEachTile(Payloads(), dtype_, elements_, [&](size_t first, size_t count, auto inputs) {
      CarryTile(level, memory, first, count, inputs);
    });
  }
  terms_.clear();
  std::fill(began, began + level, false);
  started_[level] = true;
}

// The earlier sum comes first, also of equal values. A sum moves up as a pointer where nothing is
// to be added to it.
void RoundSum::CarryTile(uint32_t level, const Memory& memory, size_t first, size_t count,
                         std::span<const void* const> inputs) const {
  const size_t offset = first * AccumulatorSizeOf(dtype_);
  std::byte* sum = nullptr;
  if (started_[0] || !inputs.empty()) {
    // A first group's sum is made where it will be wanted.
    sum = SumOf(level > 0 && !started_[0] && !started_[1] ? 1 : 0, memory) + offset;
  }
  if (!inputs.empty()) {
    started_[0] ? Accumulate(dtype_, op_, sum, inputs, count)
                : Start(dtype_, op_, sum, inputs, count);
  }
  for (uint32_t l = 1; l <= level; ++l) {
    std::byte* const above = SumOf(l, memory) + offset;
    if (started_[l]) {
      const void* const added[] = {sum};
      if (sum != nullptr) Accumulate(AccumulatorOf(dtype_), op_, above, added, count);
      sum = above;
    }
  }
  std::byte* const last = SumOf(level, memory) + offset;
  if (sum != last) std::memcpy(last, sum, count * AccumulatorSizeOf(dtype_));
}

size_t RoundSum::Condense(const Memory& memory) {
  const bool alone = !started_[0] && terms_.size() == 1;
  if (!alone || SizeOf(dtype_) != AccumulatorSizeOf(dtype_)) {
    Carry(/*level=*/0, memory);
    return 0;
  }
  const size_t copied = Decode(terms_.front().data, dtype_, elements_, SumOf(0, memory));
  started_[0] = true;
  terms_.clear();
  return copied;
}

size_t RoundSum::LetGoOfBuffers(const Memory& memory) {
  const bool only_references = std::all_of(terms_.begin(), terms_.end(), [](const Term& term) {
    return term.owner != nullptr && term.owner->by_reference();
  });
  return only_references ? 0 : Condense(memory);
}

bool RoundSum::RefersTo(NodeId node) const {
  return std::any_of(terms_.begin(), terms_.end(), [node](const Term& term) {
    return term.owner != nullptr && term.owner->by_reference() && term.node == node;
  });
}

void RoundSum::Finish(const Memory& memory, uint64_t divisor) {
  if (levels_ > 1) Carry(levels_ - 1, memory);
  const bool started = started_[levels_ - 1];
  const size_t size = SizeOf(dtype_);
  if (!started && terms_.empty()) {
    std::memset(memory.result, 0, elements_ * size);
  } else if (terms_.empty()) {
    addend::Finish(dtype_, op_, memory.result, memory.accumulator, elements_, divisor);
  } else {
    ForEachTile(Payloads(), dtype_, elements_, [&](size_t first, size_t count, auto inputs) {
      std::byte* const result = memory.result + first * size;
      if (started) {
        const std::byte* const sum = memory.accumulator + first * AccumulatorSizeOf(dtype_);
        AccumulateAndFinish(dtype_, op_, result, sum, inputs, count, divisor);
      } else {
        Reduce(dtype_, op_, result, inputs, count, divisor);
      }
    });
  }
  Clear();
}

void RoundSum::FinishSum(const Memory& memory) {
  Carry(levels_ - 1, memory);
  Clear();
}

void RoundSum::Clear() {
  leaf_ = 0;
  started_ = {};
  terms_.clear();
}

}  // namespace addend
