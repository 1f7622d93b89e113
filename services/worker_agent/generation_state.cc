// From the first failure to the trainers' error.
#include "services/worker_agent/generation_state.h"

#include <algorithm>
#include <utility>

#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

namespace addend {
void GenerationState::Fail(const absl::Status& why) {
  if (!running()) return;
  Begin(why, /*missed=*/true);
  context_.reports->Send(report::Failed(context_.identity->generation, why));
  EndIfDecided();
}

void GenerationState::FailAsTold(const absl::Status& why) {
  if (failed()) return;
  Begin(why, /*missed=*/ranks_->any());
  EndIfDecided();
}

// `missed`: by a rank; otherwise all have left, and this is the end of a job.
void GenerationState::Begin(const absl::Status& why, bool missed) {
  const bool first = running();
  phase_ = Phase::kFailing;
  why_ = why;
  *context_.job = {.state = v1::FAILED, .reason = Message(why)};
  if (!first) return;
  if (missed) {
    spdlog::error("generation {} of job {} has failed: {}", context_.identity->generation.value(),
                  context_.options->job, context_.job->reason);
    ++context_.counters->failures[std::string(CauseOf(why))];
  } else {
    spdlog::info("generation {} of job {} is over: {}", context_.identity->generation.value(),
                 context_.options->job, context_.job->reason);
  }
  context_.loop->RunAfter(context_.lease, [this] { End(decided()); });
}

// True while an owner has yet to decide on a round that this node has started.
bool GenerationState::AwaitsDecision() const {
#ifdef ADDEND_FAULT_NODES_DECIDE
  return false;
#else
  const auto& tensors = tensors_->by_number();
  return ranks_->any() && std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
           const NodeTensor& tensor = *entry.second;
           return tensor.rounds.running() && !tensor.open.aborted && tensor.error.ok();
         });
#endif
}

void GenerationState::EndIfDecided() {
  if (phase_ != Phase::kFailing || AwaitsDecision()) return;
  if (!all_decided_) {
    if (!std::exchange(decided_told_, true)) context_.reports->BeatSoon();
    if (ranks_->any()) return;  // otherwise there is nobody to tell
  }
  // Not from within a link's own call.
  context_.loop->Defer([this] { End(/*decided=*/true); });
}

void GenerationState::OnAllDecided() {
  all_decided_ = true;
  EndIfDecided();
}

// From now on trainers write to their segments as they like. Other nodes may still ask for the
// results that this node holds, but an owner without a decision must not read the contributions
// that it was lent.
void GenerationState::End(bool decided) {
  if (phase_ != Phase::kFailing) return;
  phase_ = Phase::kFailed;
  ranks_->TellAll(
      ipc::FailureMessage{.code = TraitsOf(KindOf(why_)).addend_code, .reason = Message(why_)});
  listener_->OnFailed(decided);
}

}  // namespace addend
