// Passes over the accumulator: as few as the memory of the contributions allows.
#include "lib/summation/round_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/reduce/reduce.h"

namespace addend {

void RoundSum::Add(NodeId node, Bytes data, std::unique_ptr<EarlyContribution> owner,
                   const Memory& memory) {
  if (data.data() == memory.accumulator) {
    started_ = true;
  } else {
    terms_.push_back({data, node, std::move(owner)});
  }
}

std::vector<const void*> RoundSum::Pointers() const {
  std::vector<const void*> pointers;
  pointers.reserve(terms_.size());
  for (const Term& term : terms_) pointers.push_back(term.data.data());
  return pointers;
}

size_t RoundSum::Condense(const Memory& memory) {
  if (terms_.empty()) return 0;
  size_t copied = 0;
  if (started_) {
    Accumulate(dtype_, op_, memory.accumulator, Pointers(), elements_);
  } else {
    Start(dtype_, op_, memory.accumulator, Pointers(), elements_);
    const bool only_copied = terms_.size() == 1 && SizeOf(dtype_) == AccumulatorSizeOf(dtype_);
    if (only_copied) copied = terms_.front().data.size();
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
  if (!started_ && terms_.empty()) {
    std::memset(memory.result, 0, elements_ * SizeOf(dtype_));
  } else if (!started_) {
    Reduce(dtype_, op_, memory.result, Pointers(), elements_, divisor);
  } else if (!terms_.empty()) {
    AccumulateAndFinish(dtype_, op_, memory.result, memory.accumulator, Pointers(), elements_,
                        divisor);
  } else {
    addend::Finish(dtype_, op_, memory.result, memory.accumulator, elements_, divisor);
  }
  Clear();
}

void RoundSum::Clear() {
  started_ = false;
  terms_.clear();
}

}  // namespace addend
