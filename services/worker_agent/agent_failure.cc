// The agent when its generation fails: a node was lost, a rank stalled, declarations differ. The
// node of spec/node_loss.pml. Every rank shall see the error in the same round of a tensor, and the
// owners decide which that is: no round starts any more, and one that this node has started ends
// well or is aborted by the owners' word. A lease later at the latest the trainers are told.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"
#include "services/worker_agent/agent.h"

namespace addend {

// As the metric names it.
std::string Agent::CauseOf(const std::string& kind) {
  const bool known =
      kind == "peer_lost" || kind == "stalled" || kind == "mismatch" || kind == "resources";
  return known ? kind : "other";
}

void Agent::FailJob(const absl::Status& why, const std::string& kind, bool report) {
  // What the scheduler says, it says to all nodes.
  if (!failure_.ok() || (report && !failing_.ok())) return;
  const bool first = failing_.ok();
  failing_ = why;
  failing_code_ = TrainerCode(why, kind);
  job_state_ = v1::FAILED;
  reason_ = Message(why);
  if (first) {
    spdlog::error("generation {} of job {} has failed: {}", identity_.generation.value(),
                  options_.job, reason_);
    ++failures_[CauseOf(kind)];
    if (report && reports_ != nullptr) reports_->ReportFailure(identity_.generation, why, kind);
    loop_->RunAfter(lease_, [this, generation = identity_.generation] {
      if (generation == identity_.generation) EndGeneration(/*decided=*/false);
    });
  }
  EndIfDecided();
}

// Whether the owners have yet to say what becomes of a round that this node has started.
bool Agent::AwaitsVerdict() const {
#ifdef ADDEND_FAULT_NODES_DECIDE
  return false;
#else
  return AnyTrainer() && std::any_of(by_number_.begin(), by_number_.end(), [](const auto& entry) {
           const Tensor& tensor = *entry.second;
           return tensor.rounds.running() && !tensor.aborted && tensor.error.ok();
         });
#endif
}

void Agent::EndIfDecided() {
  if (failing_.ok() || !failure_.ok() || AwaitsVerdict()) return;
  // Not from within a link's own call.
  loop_->Defer([this, generation = identity_.generation] {
    if (generation == identity_.generation) EndGeneration(/*decided=*/true);
  });
}

// From now on trainers write where they like. Other nodes may still need to hear what this one
// holds, but an owner that has not decided must not go on with what it was lent.
void Agent::EndGeneration(bool decided) {
  if (failing_.ok() || !failure_.ok()) return;
  failure_ = failing_;
  ipc::Message message;
  message.type = ipc::Type::kFailure;
  message.code = failing_code_;
  for (TrainerLink* trainer : ranks_) {
    if (trainer != nullptr) trainer->Send(message, reason_);
  }
  pipeline_->Clear();
  if (!decided) {
    for (auto& [key, link] : links_) link->Close(absl::AbortedError("the job has failed"));
  }
  MaybeReportIdle(/*waited=*/false);
}

void Agent::OnAborted(const ServerLink* link, const FrameHeader& header) {
  Tensor* const tensor = Expecting(link, header);
  // A new owner first says where the partition stands.
  if (tensor == nullptr || tensor->owners[header.partition.index()].reported) return;
  if (header.flags & kFlagEmpty) {
    pull_->Forget(*tensor);
    return FailTensor(tensor,
                      WithExitCode(absl::UnavailableError(absl::StrFormat(
                                       "the root of broadcast '%s' is on a node that was lost",
                                       tensor->shape.name)),
                                   kExitTemporary),
                      "peer_lost");
  }
  tensor->aborted = true;
  EndIfDecided();
}

// Who takes part and who waits, for trainers that want to let nodes come back.
void Agent::NoteMembers(const v1::NodeUpdate& update) {
  const uint32_t nodes = options_.num_nodes - static_cast<uint32_t>(update.lost_nodes_size());
  if (nodes == nodes_ && update.waiting_nodes() == waiting_nodes_) return;
  if (nodes < nodes_ && update.state() == v1::READY) {
    spdlog::warn("the job goes on with {} of {} nodes", nodes, options_.num_nodes);
  }
  nodes_ = nodes;
  waiting_nodes_ = update.waiting_nodes();
  for (TrainerLink* trainer : ranks_) {
    if (trainer != nullptr) TellMembers(trainer);
  }
}

void Agent::TellMembers(TrainerLink* trainer) const {
  ipc::Message message;
  message.type = ipc::Type::kMembers;
  message.num_nodes = static_cast<int32_t>(nodes_);
  message.size = static_cast<int32_t>(waiting_nodes_);
  trainer->Send(message);
}

}  // namespace addend
