// The checks of a trainer's first message, and the answers to it.
#include "services/worker_agent/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"

namespace addend {
namespace {

constexpr char kFormerRunEnds[] = "waiting for the former run to end on all nodes";

}  // namespace

absl::Status Admission::Check(const ipc::InitMessage& init) const {
  const NodeOptions& options = *context_.options;
  if (!protocol::kTrainers.Contains(init.version)) {
    return MakeFailure(
        FailureKind::kVersion,
        absl::StrFormat(
            "libaddend speaks version %d of the trainers' protocol, but this agent speaks %s: "
            "install releases of both that have a version in common (docs/operations.md)",
            init.version, Describe(protocol::kTrainers)));
  }
  if (!init.job.empty() && init.job != options.job) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "this agent serves job '%s', not job '%s': check ADDEND_JOB and ADDEND_SOCKET", options.job,
        init.job));
  }
  return CheckPlace(init);
}

// A launcher may count each pod of this machine as a machine: the node's ranks are the ranks of
// several such machines then, in their order.
absl::Status Admission::CheckPlace(const ipc::InitMessage& init) const {
  const NodeOptions& options = *context_.options;
  const auto local_size = static_cast<int32_t>(options.local_size);
  if (init.local_size < 1 || local_size % init.local_size != 0 || init.local_rank < 0 ||
      init.local_rank >= init.local_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a trainer with LOCAL_RANK=%d and LOCAL_WORLD_SIZE=%d does not fit this "
                        "agent, which was started with --local-size=%d",
                        init.local_rank, init.local_size, local_size));
  }
  const auto size = static_cast<int32_t>(options.job_size());
  if (init.size != size || init.rank < 0 || init.rank >= size ||
      init.rank % init.local_size != init.local_rank) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a trainer with RANK=%d, WORLD_SIZE=%d, LOCAL_RANK=%d and LOCAL_WORLD_SIZE=%d does not fit "
        "this agent, whose job has %d ranks (--num-nodes=%d, --local-size=%d)",
        init.rank, init.size, init.local_rank, init.local_size, size, options.num_nodes,
        local_size));
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckNode(uint32_t rank) const {
  if (node_.value_or(NodeOf(rank)) == NodeOf(rank)) return absl::OkStatus();
  const NodeOptions& options = *context_.options;
  const uint32_t first = node_->value() * options.local_size;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a trainer with RANK=%d does not fit this agent, whose node %d has ranks %d to %d%s", rank,
      node_->value(), first, first + options.local_size - 1,
      options.node ? "" : " (the first trainer said so: --node-rank=trainers)"));
}

NodeId Admission::NodeOf(uint32_t rank) const {
  return NodeId(rank / context_.options->local_size);
}

uint32_t Admission::LocalRankOf(uint32_t rank) const { return rank % context_.options->local_size; }

// It may find a free node soon: the trainers that said the node have left, or are about to, and
// nobody has come in their place.
bool Admission::IsEarly(const Waiting& waiting, const LocalRanks& ranks, bool running) const {
  if (context_.options->node || node_.value_or(NodeOf(waiting.rank)) == NodeOf(waiting.rank))
    return false;
  const bool former_run_ends = !ranks.any() || ranks.anyone_left() || !running;
  return waiting_.empty() && former_run_ends && early_.size() < context_.options->local_size;
}

absl::Status Admission::CheckFree(uint32_t rank, const LocalRanks& ranks, bool running) const {
  const bool waits = std::any_of(waiting_.begin(), waiting_.end(),
                                 [rank](const Waiting& waiting) { return waiting.rank == rank; });
  const uint32_t local_rank = LocalRankOf(rank);
  const bool taken = ranks.at(local_rank) != nullptr && running;
  if (!waits && !taken) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("local rank %d of node %d is already connected: more trainers were started "
                      "than --local-size=%d says",
                      local_rank, node_->value(), context_.options->local_size));
}

absl::Status Admission::OnInit(Trainer* trainer, ipc::InitMessage init, const LocalRanks& ranks,
                               bool running) {
  const bool is_early = std::any_of(early_.begin(), early_.end(), [trainer](const Waiting& early) {
    return early.trainer == trainer;
  });
  if (trainer->local_rank >= 0 || is_early)
    return absl::InvalidArgumentError("a second init on one connection");
  absl::Status status = refusing_;  // first: the options may be the reason, and Check goes by them
  if (status.ok()) status = Check(init);
  if (!status.ok()) {
    Refuse(trainer, status);
    return absl::OkStatus();
  }
  const auto rank = static_cast<uint32_t>(init.rank);
  const Waiting waiting{trainer, rank, context_.loop->Now()};
  if (IsEarly(waiting, ranks, running)) {
    early_.push_back(waiting);
    trainer->Send(ipc::ProgressMessage{kFormerRunEnds});
    return absl::OkStatus();
  }
  status = CheckNode(rank);
  if (status.ok()) status = CheckFree(rank, ranks, running);
  if (!status.ok()) {
    Refuse(trainer, status);
    return absl::OkStatus();
  }
  if (!node_) node_ = NodeOf(rank);
  trainer->guards = init.guard;
  trainer->launched_apart = init.local_size != static_cast<int32_t>(context_.options->local_size);
  waiting_.push_back(waiting);
  RefuseEarly();
  ReportWaiting();
  return absl::OkStatus();
}

// The next run of this node has begun to gather.
void Admission::RefuseEarly() {
  for (; !early_.empty(); early_.pop_front()) {
    Refuse(early_.front().trainer, CheckNode(early_.front().rank));
  }
}

void Admission::Refuse(Trainer* trainer, const absl::Status& why) {
  trainer->Send(
      ipc::InitReplyMessage{.code = TraitsOf(KindOf(why)).addend_code, .reason = Message(why)});
  ++refused_;
  spdlog::warn("refused a trainer (pid {}): {}", trainer->pid(), Message(why));
}

// Trainers wait for the job no longer than for a round.
void Admission::RefuseStalled(const LocalRanks& ranks) {
  RefuseStalled(&early_, kFormerRunEnds);
  for (const Waiting& early : early_) early.trainer->Send(ipc::ProgressMessage{kFormerRunEnds});
  if (RefuseStalled(&waiting_, ProgressText(ranks))) ReportWaiting();
}

// True: there was such a trainer.
bool Admission::RefuseStalled(std::deque<Waiting>* waiting, const std::string& progress) {
  const absl::Duration patience = context_.options->stall_timeout;
  bool refused = false;
  while (!waiting->empty() && context_.loop->Now() - waiting->front().since >= patience) {
    const absl::Status why = MakeFailure(
        FailureKind::kStalled,
        absl::StrFormat("job '%s' has not begun within --stall-timeout=%s: %s",
                        context_.options->job, absl::FormatDuration(patience), progress));
    Refuse(waiting->front().trainer, why);
    waiting->pop_front();
    refused = true;
  }
  return refused;
}

std::string Admission::ProgressText(const LocalRanks& ranks) const {
  if (context_.job->state == v1::READY && ranks.anyone_left()) return kFormerRunEnds;
  return context_.job->reason;
}

void Admission::TellProgress(Trainer* trainer, const LocalRanks& ranks) const {
  trainer->Send(ipc::ProgressMessage{ProgressText(ranks)});
}

void Admission::ReportWaiting() const {
  if (context_.job->state != v1::FORMING) return;
  context_.reports->Send(
      report::Trainers(context_.identity->generation, static_cast<uint32_t>(waiting_.size())));
}

std::vector<Trainer*> Admission::AdmitWaiting(LocalRanks* ranks) {
  std::vector<Trainer*> admitted;
  if (context_.job->state != v1::READY || ranks->anyone_left()) {
    for (const Waiting& waiting : waiting_) TellProgress(waiting.trainer, *ranks);
    return admitted;
  }
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Admit(waiting_.front(), ranks);
    admitted.push_back(waiting_.front().trainer);
  }
  return admitted;
}

void Admission::Admit(const Waiting& waiting, LocalRanks* ranks) const {
  const NodeOptions& options = *context_.options;
  const uint32_t local_rank = LocalRankOf(waiting.rank);
  ranks->Enter(local_rank, waiting.trainer);
  waiting.trainer->Send(
      ipc::InitReplyMessage{.rank = static_cast<int32_t>(ranks->RankOf(local_rank)),
                            .size = static_cast<int32_t>(options.job_size()),
                            .local_rank = static_cast<int32_t>(local_rank),
                            .local_size = static_cast<int32_t>(options.local_size),
                            .node_rank = static_cast<int32_t>(node_->value()),
                            .num_nodes = static_cast<int32_t>(options.num_nodes)});
}

void Admission::OnTrainerGone(const Trainer* trainer) {
  const auto is_it = [trainer](const Waiting& waiting) { return waiting.trainer == trainer; };
  std::erase_if(early_, is_it);
  if (std::erase_if(waiting_, is_it) > 0) ReportWaiting();
}

void Admission::RefuseAll(const absl::Status& why, uint32_t told) {
  if (refusing_.ok()) refused_ = 0;  // those were told another reason
  refusing_ = why;
  refused_ += told;
  for (std::deque<Waiting>* const all : {&waiting_, &early_}) {
    for (; !all->empty(); all->pop_front()) Refuse(all->front().trainer, why);
  }
}

}  // namespace addend
