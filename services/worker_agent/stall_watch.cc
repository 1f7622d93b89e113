// The warnings and the error about a round that stays open, with the reason.
#include "services/worker_agent/stall_watch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/client/messages.h"

namespace addend {
namespace {

constexpr absl::Duration kStallWarnings[] = {absl::Seconds(10), absl::Seconds(60)};
// Tensors of which the trainers are told at a time: with a rank all tensors of a model may stall.
constexpr size_t kMostTold = 4;

}  // namespace

std::string StallWatch::Describe(const NodeTensor& tensor, const ContributionSource& source) const {
  const absl::Duration open = context_.loop->Now() - tensor.open.since;
  const std::string head =
      absl::StrFormat("round %d of tensor '%s' is open for %.0f s: ", tensor.rounds.round().value(),
                      tensor.shape.name, absl::ToDoubleSeconds(open));
  if (!tensor.rounds.AllPushed()) {
    return head + absl::StrFormat("rank %s of this node has not pushed it",
                                  ranks_->RanksOf(tensor.rounds.Missing()));
  }
  if (context_.pulse->asking()) {
    return head +
           "this process did not run for a while, and the scheduler has not confirmed yet "
           "that its node still takes part";
  }
  if (const std::string why = source.WhyOpen(tensor); !why.empty()) return head + why;
  if (const std::string others = Others(tensor); !others.empty()) return head + others;
  if (!tensor.planned()) return head + "another node has not declared it";
  return head +
         absl::StrFormat(
             "this node has pushed it, and another node has not ('addendctl why %s' names it)",
             context_.options->job);
}

std::string StallWatch::Instead(const NodeTensor& tensor) const {
  std::string text;
  for (const uint32_t rank : tensor.rounds.Missing()) {
    const NodeTensor* longest = nullptr;
    for (const auto& [number, other] : tensors_->by_number()) {
      const bool waits = other->IsOpen() && other->rounds.HasPushed(rank);
      if (waits && (longest == nullptr || IsOpenLonger(other.get(), longest)))
        longest = other.get();
    }
    if (longest == nullptr) continue;
    text +=
        absl::StrFormat(", and rank %d waits for tensor '%s' instead (its round %d)",
                        ranks_->RankOf(rank), longest->shape.name, longest->rounds.round().value());
  }
  return text;
}

std::string StallWatch::Others(const NodeTensor& tensor) const {
  const auto told = told_.find({tensor.shape.name, tensor.rounds.round().value()});
  return told == told_.end() ? "" : told->second.text;
}

void StallWatch::Apply(const v1::NodeUpdate& update) {
  std::map<Key, Told> told;
  const absl::Time now = context_.loop->Now();
  for (const v1::Stall& stall : update.stalls()) {
    const Key key(stall.name(), stall.round());
    const auto& missing = stall.missing_nodes();
    const auto former = told_.find(key);
    Told& one = told[key];
    if (former != told_.end()) one = former->second;
    if (former == told_.end()) one.since = now - absl::Seconds(stall.open_s());
    one.text = stall.text();
    one.concerns =
        std::find(missing.begin(), missing.end(), context_.identity->node.value()) != missing.end();
  }
  told_ = std::move(told);
}

void StallWatch::TellOthers() {
  const absl::Time now = context_.loop->Now();
  for (auto& [key, told] : told_) {
    if (!told.concerns && context_.identity->node != NodeId(0)) continue;
    const auto tensor = tensors_->ByName(key.first);
    // Then this node warns by itself.
    if (tensor != nullptr && tensor->IsOpen()) continue;
    if (told.warnings == 2 || now - told.since < kStallWarnings[told.warnings]) continue;
    ++told.warnings;
    const std::string text =
        absl::StrFormat("round %d of tensor '%s' is open for %.0f s on other nodes: %s", key.second,
                        key.first, absl::ToDoubleSeconds(now - told.since), told.text);
    ranks_->TellAll(ipc::ProgressMessage{text});
    spdlog::warn("{}", text);
  }
}

void StallWatch::Check(const ContributionSource& source) {
  if (!state_->running()) return;
  TellOthers();
  const absl::Time now = context_.loop->Now();
  std::vector<const NodeTensor*> due;  // for a warning
  for (const auto& [number, tensor] : tensors_->by_number()) {
    if (!tensor->IsOpen() || !state_->running()) continue;
    const absl::Duration open = now - tensor->open.since;
    if (open >= context_.options->stall_timeout) {
      const std::string text = Describe(*tensor, source);
      return state_->Fail(MakeFailure(FailureKind::kStalled, text));
    }
    if (tensor->open.warnings < 2 && open >= kStallWarnings[tensor->open.warnings]) {
      ++tensor->open.warnings;
      due.push_back(tensor.get());
    }
  }
  std::stable_sort(due.begin(), due.end(), IsOpenLonger);
  for (size_t i = 0; i < due.size(); ++i) Warn(*due[i], source, i < kMostTold);
  if (due.size() > kMostTold) {
    ranks_->TellAll(ipc::ProgressMessage{absl::StrFormat(
        "%d more tensors are open as well: the agent's log names them", due.size() - kMostTold)});
  }
}

void StallWatch::Warn(const NodeTensor& tensor, const ContributionSource& source, bool tell) {
  std::string text = Describe(tensor, source);
  if (tell) {
    text += Instead(tensor);
    ranks_->TellAll(ipc::ProgressMessage{text});
  }
  spdlog::warn("{}", text);
  context_.incidents->Note({"stall", text, context_.loop->TraceTime()});
}

}  // namespace addend
