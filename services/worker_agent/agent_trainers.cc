// The agent and its trainers: admission, declarations, pushes, their end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lib/client/addend.h"
#include "lib/trace/clock.h"
#include "services/worker_agent/agent.h"

namespace addend {
namespace {

constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 44;
constexpr size_t kMaxTensors = 100000;

absl::StatusOr<TensorShape> ReadShape(const TrainerMessage& message) {
  TensorShape shape;
  shape.name = std::string(message.text);
  if (shape.name.empty() || !IsUtf8(shape.name)) {
    return absl::InvalidArgumentError("a tensor's name must be UTF-8 and not empty");
  }
  if (message.fixed.dtype >= kDTypes || message.fixed.op >= kReduceOps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s' has an unknown dtype or operation", shape.name));
  }
  shape.dtype = static_cast<DType>(message.fixed.dtype);
  shape.op = static_cast<ReduceOp>(message.fixed.op);
  uint64_t elements = 1;
  for (const int64_t dim : message.dims) {
    if (dim < 0 || (dim > 0 && elements > kMaxTensorBytes / static_cast<uint64_t>(dim))) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor '%s' has a negative dimension or is too large", shape.name));
    }
    elements *= static_cast<uint64_t>(dim);
    shape.dims.push_back(dim);
  }
  return shape;
}

v1::TensorDescriptor Describe(const TensorShape& shape) {
  v1::TensorDescriptor descriptor;
  descriptor.set_name(shape.name);
  descriptor.set_dtype(static_cast<v1::DType>(shape.dtype));
  descriptor.set_op(static_cast<v1::ReduceOp>(shape.op));
  for (const int64_t dim : shape.dims) descriptor.add_shape(dim);
  descriptor.set_reduction_tree("flat");
  return descriptor;
}

}  // namespace

absl::Status Agent::OnMessage(TrainerLink* trainer, TrainerMessage message) {
  if (message.fixed.type == ipc::Type::kInit) return OnInit(trainer, message);
  if (trainer->local_rank < 0)
    return absl::InvalidArgumentError("the first message must be an init");
  switch (message.fixed.type) {
    case ipc::Type::kDeclare:
      return OnDeclare(trainer, message);
    case ipc::Type::kPush:
      return OnPush(trainer, message.fixed);
    case ipc::Type::kUndeclare:
      return OnUndeclare(trainer, message.fixed.tensor);
    case ipc::Type::kShutdown:
      return OnShutdown(trainer);
    case ipc::Type::kDevice:
      return OnDevice(trainer, message.text);
    case ipc::Type::kGroupId:
      return OnGroupId(trainer, message.text);
    case ipc::Type::kAttach:
      return OnAttach(trainer, message.fixed.tensor);
    case ipc::Type::kStaged:
      return OnStaged(trainer, message.fixed);
    case ipc::Type::kDirect:
      return OnDirect(trainer, message.fixed, std::move(message.fd));
    case ipc::Type::kFetched:
      return OnFetched(trainer, message.fixed);
    case ipc::Type::kDeviceFailed:
      return OnDeviceFailed(trainer, message.text);
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown message type %d", static_cast<int>(message.fixed.type)));
  }
}

absl::Status Agent::CheckInit(const TrainerMessage& message) const {
  const ipc::Message& init = message.fixed;
  if (init.version != ipc::kVersion) {
    return WithExitCode(absl::FailedPreconditionError(
                            absl::StrFormat("libaddend speaks version %d of the trainer protocol "
                                            "and this agent %d: install the same release of both",
                                            init.version, ipc::kVersion)),
                        kExitVersion);
  }
  if (!message.text.empty() && message.text != options_.job) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "this agent serves job '%s', not job '%s': check ADDEND_JOB and ADDEND_SOCKET",
        options_.job, message.text));
  }
  const auto local_size = static_cast<int32_t>(options_.local_size);
  if (init.local_size != local_size || init.local_rank < 0 || init.local_rank >= local_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a trainer with LOCAL_RANK=%d and LOCAL_WORLD_SIZE=%d does not fit this "
                        "agent, which was started with --local-size=%d",
                        init.local_rank, init.local_size, local_size));
  }
  const int32_t size = static_cast<int32_t>(options_.num_nodes) * local_size;
  const int32_t rank = static_cast<int32_t>(options_.node.value()) * local_size + init.local_rank;
  if (init.size != size || init.rank != rank) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a trainer with RANK=%d and WORLD_SIZE=%d does not fit this agent: local "
                        "rank %d of node %d is rank %d of %d",
                        init.rank, init.size, init.local_rank, options_.node.value(), rank, size));
  }
  return absl::OkStatus();
}

absl::Status Agent::OnInit(TrainerLink* trainer, const TrainerMessage& message) {
  if (trainer->local_rank >= 0)
    return absl::InvalidArgumentError("a second init on one connection");
  absl::Status status = CheckInit(message);
  if (status.ok()) status = refusing_;
  const int32_t rank = message.fixed.local_rank;
  const bool same_waits =
      std::any_of(waiting_.begin(), waiting_.end(),
                  [rank](const Waiting& waiting) { return waiting.init.local_rank == rank; });
  if (status.ok() && (same_waits || (ranks_[rank] != nullptr && failing_.ok()))) {
    status = absl::InvalidArgumentError(
        absl::StrFormat("local rank %d of node %d is already connected: more trainers were started "
                        "than --local-size=%d says",
                        rank, options_.node.value(), options_.local_size));
  }
  if (!status.ok()) {
    RefuseInit(trainer, status, "");
    return absl::OkStatus();
  }
  waiting_.push_back({trainer, message.fixed, absl::Now()});
  ReportWaiting();
  AdmitWaiting();
  if (!waiting_.empty()) TellProgress(trainer);
  return absl::OkStatus();
}

void Agent::RefuseInit(TrainerLink* trainer, const absl::Status& why, const std::string& kind) {
  ipc::Message reply;
  reply.type = ipc::Type::kInitReply;
  reply.code = TrainerCode(why, kind);
  trainer->Send(reply, Message(why));
  ++refused_;
  spdlog::warn("refused a trainer (pid {}): {}", trainer->pid(), Message(why));
}

// Those who wait for the job to begin wait no longer than for a round.
void Agent::RefuseStalledInits(absl::Time now) {
  bool refused = false;
  while (!waiting_.empty() && now - waiting_.front().since >= options_.stall_timeout) {
    const absl::Status why =
        WithExitCode(absl::DeadlineExceededError(absl::StrFormat(
                         "job '%s' has not begun within --stall-timeout=%s: %s", options_.job,
                         absl::FormatDuration(options_.stall_timeout), ProgressText())),
                     kExitTemporary);
    RefuseInit(waiting_.front().trainer, why, "stalled");
    waiting_.pop_front();
    refused = true;
  }
  if (refused) ReportWaiting();
}

std::string Agent::ProgressText() const {
  if (job_state_ == v1::READY && somebody_left_)
    return "waiting for the former run to end on all nodes";
  return reason_;
}

void Agent::TellProgress(TrainerLink* trainer) const {
  if (trainer->local_rank >= 0) return;
  ipc::Message progress;
  progress.type = ipc::Type::kProgress;
  trainer->Send(progress, ProgressText());
}

void Agent::ReportWaiting() {
  if (reports_ == nullptr || job_state_ != v1::FORMING) return;
  reports_->ReportTrainers(identity_.generation, static_cast<uint32_t>(waiting_.size()));
}

void Agent::AdmitWaiting() {
  if (job_state_ != v1::READY || somebody_left_) {
    for (const Waiting& waiting : waiting_) TellProgress(waiting.trainer);
    return;
  }
  while (!waiting_.empty()) {
    Admit(waiting_.front());
    waiting_.pop_front();
  }
}

void Agent::Admit(const Waiting& waiting) {
  const int32_t rank = waiting.init.local_rank;
  waiting.trainer->local_rank = rank;
  ranks_[rank] = waiting.trainer;
  ever_admitted_[rank] = true;
  ipc::Message reply;
  reply.type = ipc::Type::kInitReply;
  reply.rank = waiting.init.rank;
  reply.size = waiting.init.size;
  reply.local_rank = rank;
  reply.local_size = static_cast<int32_t>(options_.local_size);
  reply.node_rank = static_cast<int32_t>(options_.node.value());
  reply.num_nodes = static_cast<int32_t>(options_.num_nodes);
  waiting.trainer->Send(reply);
  if (nodes_ < options_.num_nodes || waiting_nodes_ > 0) TellMembers(waiting.trainer);
}

absl::Status Agent::OnDeclare(TrainerLink* trainer, const TrainerMessage& message) {
  if (!failing_.ok()) return absl::OkStatus();  // it is told why, or has been
  ipc::Message reply;
  reply.type = ipc::Type::kDeclared;
  reply.request = message.fixed.request;
  auto shape = ReadShape(message);
  absl::StatusOr<std::shared_ptr<Tensor>> tensor =
      shape.ok() ? FindOrCreate(static_cast<uint32_t>(trainer->local_rank), *std::move(shape))
                 : shape.status();
  if (!tensor.ok()) {
    reply.code = TrainerCode(tensor.status(), "");
    trainer->Send(reply, Message(tensor.status()));
    // The other nodes wait for a tensor that this one can never declare: they shall know why.
    if (absl::IsFailedPrecondition(tensor.status())) {
      FailJob(tensor.status(), "mismatch", /*report=*/true);
    }
    return absl::OkStatus();
  }
  Tensor& t = **tensor;
  t.uses[trainer->local_rank] = Tensor::Use::kAttached;
  reply.tensor = t.number;
  trainer->Send(reply, {}, {t.contributions[trainer->local_rank], t.results});
  DeclareFront(&by_name_[t.shape.name]);
  return absl::OkStatus();
}

// A rank that has let go of a tensor may declare the name anew before the other ranks have let go:
// then a second instance waits behind the first.
absl::StatusOr<std::shared_ptr<Tensor>> Agent::FindOrCreate(uint32_t local_rank,
                                                            TensorShape shape) {
  Instances& instances = by_name_[shape.name];
  for (const auto& tensor : instances.tensors) {
    if (tensor->uses[local_rank] != Tensor::Use::kNever) continue;
    if (tensor->shape == shape) return tensor;
    const auto other = std::find_if(tensor->uses.begin(), tensor->uses.end(),
                                    [](Tensor::Use use) { return use != Tensor::Use::kNever; });
    const auto other_rank = static_cast<uint32_t>(other - tensor->uses.begin());
    const uint32_t first = options_.node.value() * options_.local_size;
    const absl::Status mismatch = absl::FailedPreconditionError(
        absl::StrFormat("tensor '%s' is declared as %s by rank %d but as %s by rank %d (both on "
                        "node %d): all ranks must declare the same",
                        shape.name, tensor->shape.ToString(), first + other_rank, shape.ToString(),
                        first + local_rank, options_.node.value()));
    FailTensor(tensor.get(), mismatch, "");
    return mismatch;
  }
  if (by_number_.size() >= kMaxTensors) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' is one too many: a job has at most %d tensors", shape.name, kMaxTensors));
  }
  ADDEND_ASSIGN_OR_RETURN(auto tensor,
                          Tensor::Create(next_number_++, std::move(shape), options_.local_size));
  by_number_[tensor->number] = tensor;
  instances.tensors.push_back(tensor);
  return tensor;
}

void Agent::DeclareFront(Instances* instances) {
  Tensor& front = *instances->tensors.front();
  if (front.declared_to_scheduler || !front.error.ok()) return;
  front.declared_to_scheduler = true;
  result_slots_->Enter(identity_.generation, front);
  reports_->Declare(identity_.generation, Describe(front.shape));
}

absl::Status Agent::OnPush(TrainerLink* trainer, const ipc::Message& push) {
  if (!failure_.ok()) return absl::OkStatus();
  const auto it = by_number_.find(push.tensor);
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  if (it == by_number_.end() || it->second->uses[rank] != Tensor::Use::kAttached) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a push of tensor number %d, which was not declared", push.tensor));
  }
  const std::shared_ptr<Tensor> tensor = it->second;
  if (!tensor->error.ok()) {
    ipc::Message reply;
    reply.type = ipc::Type::kResult;
    reply.tensor = tensor->number;
    reply.round = push.round;
    reply.code = tensor->error_code;
    trainer->Send(reply, Message(tensor->error));
    return absl::OkStatus();
  }
  ADDEND_RETURN_IF_ERROR(
      tensor->rounds.OnPush(rank, Round(push.round), push.flags & ipc::kFlagEmpty));
  if (tensor->open_since == absl::InfiniteFuture()) tensor->open_since = absl::Now();
  const int64_t now = TraceNow();
  tensor->NotePush(rank, now - static_cast<int64_t>(std::min<uint64_t>(push.request, now)), now);
  tensor->priority = push.priority;
  NoteDevicePush(tensor, rank, push.flags & ipc::kFlagDevice);
  TryStart(tensor);
  return absl::OkStatus();
}

absl::Status Agent::OnUndeclare(TrainerLink* trainer, uint32_t number) {
  if (!failure_.ok()) return absl::OkStatus();
  const auto it = by_number_.find(number);
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  if (it == by_number_.end() || it->second->uses[rank] != Tensor::Use::kAttached ||
      (it->second->rounds.HasPushed(rank) && it->second->error.ok())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor number %d was undeclared while it is in use, or was not declared", number));
  }
  const std::shared_ptr<Tensor> tensor = it->second;
  tensor->uses[rank] = Tensor::Use::kReleased;
  if (!tensor->AllReleased()) return absl::OkStatus();
  by_number_.erase(it);
  staging_order_.Forget(*tensor);
  host_copies_.Forget(*tensor);
  absl::erase_if(unsent_, [&](const auto& one) { return one.second.tensor == tensor; });
  // It stays in by_id_ until no other node needs a result that this one holds.
  Instances& instances = by_name_[tensor->shape.name];
  std::erase(instances.tensors, tensor);
  if (tensor->declared_to_scheduler) {
    result_slots_->Remove(identity_.generation, *tensor);
    reports_->Undeclare(identity_.generation, tensor->shape.name);
  }
  if (instances.tensors.empty()) {
    by_name_.erase(tensor->shape.name);
  } else {
    DeclareFront(&instances);
  }
  return absl::OkStatus();
}

absl::Status Agent::OnShutdown(TrainerLink* trainer) {
  trainer->said_goodbye = true;
  trainer->Close(absl::OkStatus());
  return absl::OkStatus();
}

void Agent::OnTrainerGone(TrainerLink* trainer, const absl::Status& why) {
  if (std::erase_if(waiting_,
                    [trainer](const Waiting& waiting) { return waiting.trainer == trainer; }) > 0) {
    ReportWaiting();
  }
  if (trainer->local_rank < 0 || ranks_[trainer->local_rank] != trainer) return;
  ranks_[trainer->local_rank] = nullptr;
  somebody_left_ = true;
  // First what is delivered without it: the other nodes have these results too.
  if (direct_rank_ == static_cast<uint32_t>(trainer->local_rank)) host_copies_.GiveUp();
  if (!trainer->said_goodbye && failure_.ok()) {
    const uint32_t rank = options_.node.value() * options_.local_size + trainer->local_rank;
    const std::string lost = absl::StrFormat(
        "rank %d (local rank %d of node %d, pid %d on %s) ended without shutdown: %s", rank,
        trainer->local_rank, options_.node.value(), trainer->pid(), options_.hostname,
        Message(why));
    if (const absl::Status cause = RefusedTensor(); !cause.ok()) {
      // That is why it ended, and what the ranks have to hear that come to this tensor later.
      const absl::Status named(cause.code(), absl::StrFormat("%s; %s", Message(cause), lost));
      FailJob(WithExitCode(named, ExitCodeOf(cause)),
              absl::IsResourceExhausted(cause) ? "resources" : "mismatch", /*report=*/true);
    } else {
      FailJob(WithExitCode(absl::Status(why.code(), lost), kExitTemporary), "peer_lost",
              /*report=*/true);
    }
  }
  EndIfDecided();
  MaybeReportIdle(/*waited=*/false);
}

// The first error of a tensor alone; OK if there is none.
absl::Status Agent::RefusedTensor() const {
  for (const auto& [number, tensor] : by_number_) {
    if (!tensor->error.ok() && tensor->error_code != ADDEND_ERROR_PEER_LOST) return tensor->error;
  }
  return absl::OkStatus();
}

bool Agent::AnyTrainer() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const TrainerLink* trainer) { return trainer != nullptr; });
}

// A node is idle when all its trainers have come and gone, or when its generation has failed and
// none is left. Where only some ranks ever came, the others get a moment to do so.
void Agent::MaybeReportIdle(bool waited) {
  if (AnyTrainer() || idle_reported_ || reports_ == nullptr) return;
  if (!somebody_left_ && failure_.ok()) return;
  const bool all_came =
      std::find(ever_admitted_.begin(), ever_admitted_.end(), false) == ever_admitted_.end();
  if (all_came || waited || !failure_.ok()) {
    idle_reported_ = true;
    reports_->ReportIdle(identity_.generation);
    return;
  }
  loop_->RunAfter(absl::Seconds(1), [this, generation = identity_.generation] {
    if (generation == identity_.generation) MaybeReportIdle(/*waited=*/true);
  });
}

}  // namespace addend
