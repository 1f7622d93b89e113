// Passes over the accumulator: as few as the memory of the contributions allows.
#include "lib/summation/round_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/reduce/reduce.h"

namespace addend {

void RoundSum::Add(NodeId node, const EncodedBytes& data, std::unique_ptr<EarlyContribution> owner,
                   const Memory& memory) {
  if (data.bytes.data() == memory.accumulator) {
    started_ = true;
  } else {
    terms_.push_back({data, node, std::move(owner)});
  }
}

std::vector<EncodedBytes> RoundSum::Payloads() const {
  std::vector<EncodedBytes> payloads;
  payloads.reserve(terms_.size());
  for (const Term& term : terms_) payloads.push_back(term.data);
  return payloads;
}

void RoundSum::AddTerms(const Memory& memory) const {
  const size_t size = AccumulatorSizeOf(dtype_);
  ForEachTile(Payloads(), dtype_, elements_, [&](size_t first, size_t count, auto inputs) {
    std::byte* const accumulator = memory.accumulator + first * size;
    started_ ? Accumulate(dtype_, op_, accumulator, inputs, count)
             : Start(dtype_, op_, accumulator, inputs, count);
  });
}

size_t RoundSum::Condense(const Memory& memory) {
  if (terms_.empty()) return 0;
  size_t copied = 0;
  const bool alone = !started_ && terms_.size() == 1;
  if (alone && SizeOf(dtype_) == AccumulatorSizeOf(dtype_)) {
    copied = Decode(terms_.front().data, dtype_, elements_, memory.accumulator);
  } else {
    AddTerms(memory);
  }
  started_ = true;
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
  const size_t size = SizeOf(dtype_);
  if (!started_ && terms_.empty()) {
    std::memset(memory.result, 0, elements_ * size);
  } else if (terms_.empty()) {
    addend::Finish(dtype_, op_, memory.result, memory.accumulator, elements_, divisor);
  } else {
    ForEachTile(Payloads(), dtype_, elements_, [&](size_t first, size_t count, auto inputs) {
      std::byte* const result = memory.result + first * size;
      const std::byte* const sum = memory.accumulator + first * AccumulatorSizeOf(dtype_);
      started_ ? AccumulateAndFinish(dtype_, op_, result, sum, inputs, count, divisor)
               : Reduce(dtype_, op_, result, inputs, count, divisor);
    });
  }
  Clear();
}

void RoundSum::Clear() {
  started_ = false;
  terms_.clear();
}

}  // namespace addend
