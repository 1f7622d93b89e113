// Lists of open rounds.
#include "services/worker_agent/stall_report.h"

#include <algorithm>
#include <utility>

#include "lib/base/unnamed.h"

namespace addend {
namespace {

constexpr size_t kMostListed = 16;  // in a heartbeat, the oldest
constexpr absl::Duration kListed = absl::Seconds(1);
// From then on the scheduler hears of a round at once.
constexpr absl::Duration kUrgent = absl::Seconds(5);
// Of an operation without a name, which other ranks may never declare.
constexpr absl::Duration kUrgentUnplanned = absl::Milliseconds(500);

}  // namespace

void StallReport::Apply(const v1::NodeUpdate& update) {
  if (update.question() == question_) return;
  question_ = update.question();
  asked_.assign(update.asked().begin(), update.asked().end());
  if (question_ != 0 && state_->running()) context_.reports->BeatSoon();
}

void StallReport::Check() {
  if (!state_->running()) return;
  const absl::Time now = context_.loop->Now();
  std::set<Key> listed;
  for (const auto& [number, tensor] : tensors_->by_number()) {
    const bool unnamed = !GroupOfUnnamed(tensor->shape.name).empty();
    const absl::Duration urgent = unnamed && !tensor->planned() ? kUrgentUnplanned : kUrgent;
    if (!tensor->error.ok() || now - tensor->open.since < urgent) continue;
    listed.emplace(tensor->shape.name, tensor->rounds.round().value());
  }
  if (listed == listed_) return;
  listed_ = std::move(listed);
  context_.reports->BeatSoon();
}

void StallReport::FillBeat(v1::HeartbeatRequest* beat) const {
  if (!state_->running()) return;
  beat->set_answer(question_);
  const absl::Time now = context_.loop->Now();
  const absl::Duration least = question_ == 0 ? kListed : absl::ZeroDuration();
  std::vector<const NodeTensor*> open;
  for (const auto& [number, tensor] : tensors_->by_number()) {
    const bool listed = tensor->error.ok() && now - tensor->open.since >= least;
    if (listed) open.push_back(tensor.get());
  }
  std::stable_sort(open.begin(), open.end(), IsOpenLonger);
  beat->set_stalled_more(open.size() > kMostListed);
  open.resize(std::min(open.size(), kMostListed));
  const auto add = [&](const std::string& name, const NodeTensor* tensor) {
    v1::StalledRound* const stalled = beat->add_stalled();
    stalled->set_name(name);
    for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
      const bool missing =
          tensor == nullptr || (tensor->rounds.TakesPart(rank) && !tensor->rounds.HasPushed(rank));
      if (missing) stalled->add_missing(ranks_->RankOf(rank));
    }
    if (tensor == nullptr) return;
    stalled->set_round(tensor->rounds.round().value());
    stalled->set_participants(tensor->shape.participants.bits());
    if (!tensor->IsOpen()) return;
    // A round that has just been opened is open, too.
    stalled->set_open_s(std::max(absl::ToDoubleSeconds(now - tensor->open.since), 1e-3));
  };
  for (const NodeTensor* tensor : open) add(tensor->shape.name, tensor);
  for (const std::string& name : asked_) {
    const auto tensor = tensors_->ByName(name);
    const bool there = std::find(open.begin(), open.end(), tensor.get()) != open.end();
    if (!there && (tensor == nullptr || tensor->error.ok())) add(name, tensor.get());
  }
}

}  // namespace addend
