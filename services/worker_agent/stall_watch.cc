// The warnings and the error about a round that stays open, with the reason.
#include "services/worker_agent/stall_watch.h"

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"

namespace addend {
namespace {

constexpr absl::Duration kStallWarnings[] = {absl::Seconds(10), absl::Seconds(60)};

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
  if (const std::string why = source.WhyOpen(tensor); !why.empty()) return head + why;
  if (!tensor.planned()) return head + "another node has not declared it";
  return head +
         absl::StrFormat(
             "this node has pushed it, and another node has not ('addendctl why %s' names it)",
             context_.options->job);
}

void StallWatch::Check(const ContributionSource& source) {
  const absl::Time now = context_.loop->Now();
  for (const auto& [number, tensor] : tensors_->by_number()) {
    if (tensor->open.since == absl::InfiniteFuture() || !state_->running()) continue;
    const absl::Duration open = now - tensor->open.since;
    if (open >= context_.options->stall_timeout) {
      const std::string text = Describe(*tensor, source);
      return state_->Fail(MakeFailure(FailureKind::kStalled, text));
    }
    if (tensor->open.warnings < 2 && open >= kStallWarnings[tensor->open.warnings]) {
      ++tensor->open.warnings;
      const std::string text = Describe(*tensor, source);
      spdlog::warn("{}", text);
      context_.incidents->Note({"stall", text, context_.loop->TraceTime()});
    }
  }
}

}  // namespace addend
