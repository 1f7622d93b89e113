// A round's pushes and results.
#include "services/worker_agent/tensor_rounds.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {

TensorRounds::TensorRounds(const std::vector<bool>& taking_part) {
  for (const bool takes_part : taking_part) {
    pushed_.push_back(takes_part ? Push::kMissing : Push::kOutside);
  }
}

absl::Status TensorRounds::OnPush(uint32_t local_rank, Round round, bool empty) {
  if (round != round_ || HasPushed(local_rank)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("local rank %d pushed round %d while round %d is open", local_rank,
                        round.value(), round_.value()));
  }
  pushed_[local_rank] = empty ? Push::kEmpty : Push::kData;
  return absl::OkStatus();
}

bool TensorRounds::AllPushed() const {
  return std::none_of(pushed_.begin(), pushed_.end(),
                      [](Push push) { return push == Push::kMissing; });
}

bool TensorRounds::AnyPushed() const {
  return std::any_of(pushed_.begin(), pushed_.end(),
                     [](Push push) { return push == Push::kEmpty || push == Push::kData; });
}

std::vector<uint32_t> TensorRounds::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < pushed_.size(); ++rank) {
    if (pushed_[rank] == Push::kMissing) missing.push_back(rank);
  }
  return missing;
}

void TensorRounds::Start(uint32_t partitions) {
  ADDEND_CHECK(AllPushed() && !running_, "a round starts once, when all local ranks have pushed");
  running_ = true;
  held_.assign(partitions, false);
  held_count_ = 0;
}

bool TensorRounds::Wants(uint32_t partition, [[maybe_unused]] Round round) const {
  if (!running_ || partition >= held_.size() || held_[partition]) return false;
#ifdef ADDEND_FAULT_OLD_ROUND
  return true;
#else
  return round == round_;
#endif
}

Round TensorRounds::Held(uint32_t partition) const {
  const bool this_round = running_ && partition < held_.size() && held_[partition];
  return this_round ? round_ : Round(round_.value() - 1);
}

bool TensorRounds::OnResult(uint32_t partition) {
  held_[partition] = true;
  ++held_count_;
  return held_count_ == held_.size();
}

void TensorRounds::Finish() {
  round_ = Next(round_);
  running_ = false;
  for (Push& push : pushed_) {
    if (push != Push::kOutside) push = Push::kMissing;
  }
}

}  // namespace addend
