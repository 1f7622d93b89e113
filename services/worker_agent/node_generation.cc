// Passes the events of trainers, links and the scheduler on to the generation's objects.
#include "services/worker_agent/node_generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

NodeContext WithLoop(NodeContext context, TaskLoop* loop) {
  context.loop = loop;
  return context;
}

}  // namespace

NodeGeneration::NodeGeneration(const NodeContext& context)
    : loop_(context.loop),
      context_(WithLoop(context, &loop_)),
      nodes_{.taking_part = context.options->num_nodes, .waiting = 0},
      ranks_(context.identity->node, context.options->local_size, context.options->hostname),
      tensors_(context.identity->generation, context.options->num_nodes, &ranks_, context.reports,
               context.slots),
      state_(context_, &ranks_, &tensors_, this),
      servers_(context_, &tensors_, &state_, this),
      integrity_(context_, &ranks_, &state_, &nodes_, &servers_),
      rounds_(context_, &ranks_, &tensors_, &state_, &nodes_, &servers_, &integrity_),
      host_source_(&loop_, &rounds_),
      devices_(context_, &ranks_, &tensors_, &state_),
      device_source_(context_, &ranks_, &tensors_, &state_, &devices_, &host_source_, &rounds_),
      plan_(context_, &tensors_, &state_, &servers_, &rounds_),
      departures_(context_, &ranks_, &tensors_, &state_),
      stalls_(context_, &ranks_, &tensors_, &state_),
      stall_report_(context_, &ranks_, &tensors_, &state_) {
  rounds_.Use(&host_source_);
}

absl::Status NodeGeneration::OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd) {
  switch (message.fixed.type) {
    case ipc::Type::kPush:
      return OnPush(trainer, ipc::PushMessage::Decode(message));
    case ipc::Type::kDeclare:
    case ipc::Type::kDeclareAmong:
      return OnDeclare(trainer, ipc::DeclareMessage::Decode(message));
    case ipc::Type::kUndeclare:
      return OnUndeclare(*trainer, ipc::UndeclareMessage::Decode(message));
    case ipc::Type::kShutdown:
      trainer->said_goodbye = true;
      trainer->Close(absl::OkStatus());
      return absl::OkStatus();
    default:
      return OnDeviceMessage(trainer, message, std::move(fd));
  }
}

absl::Status NodeGeneration::OnPush(Trainer* trainer, const ipc::PushMessage& push) {
  if (state_.failed()) return absl::OkStatus();
  const auto tensor = tensors_.Attached(push.tensor, static_cast<uint32_t>(trainer->local_rank));
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a push of tensor number %d, which was not declared", push.tensor));
  }
  if (push.on_device) {
    if (!tensor->shape.participants.all()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor '%s' of %s was pushed from a GPU, where only tensors of all "
                          "ranks can be summed",
                          tensor->shape.name, tensor->shape.participants.Text()));
    }
    rounds_.Use(&device_source_);
  }
  ADDEND_RETURN_IF_ERROR(rounds_.OnPush(tensor, trainer, push));
  departures_.Check(*tensor);
  return absl::OkStatus();
}

absl::Status NodeGeneration::OnDeclare(Trainer* trainer, ipc::DeclareMessage declare) {
  if (!state_.running()) return absl::OkStatus();  // the rank is told why, or was told
  ipc::DeclaredMessage reply{.request = declare.request};
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  auto shape = ReadShape(std::move(declare), context_.options->job_size(), context_.options->wire);
  TensorTable::Shared conflicting;
  const absl::StatusOr<TensorTable::Shared> tensor =
      shape.ok() ? tensors_.Attach(rank, *std::move(shape), &conflicting) : shape.status();
  if (!tensor.ok()) {
    if (conflicting != nullptr) {
      rounds_.FailTensor(conflicting.get(), WithKind(tensor.status(), FailureKind::kMismatch));
    }
    reply.code = TraitsOf(KindOf(tensor.status())).addend_code;
    reply.reason = Message(tensor.status());
    trainer->Send(reply);
    return absl::OkStatus();
  }
  reply.tensor = (*tensor)->number;
  if (trainer->guards) (*tensor)->contributions[rank]->Lend();
  trainer->Send(reply, {(*tensor)->contributions[rank], (*tensor)->results});
  tensors_.DeclareFront((*tensor)->shape.name);
  return absl::OkStatus();
}

absl::Status NodeGeneration::OnUndeclare(const Trainer& trainer,
                                         const ipc::UndeclareMessage& undeclare) {
  if (state_.failed()) return absl::OkStatus();
  const auto rank = static_cast<uint32_t>(trainer.local_rank);
  const auto tensor = tensors_.Attached(undeclare.tensor, rank);
  if (tensor == nullptr || (tensor->rounds.HasPushed(rank) && tensor->error.ok())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor number %d was undeclared while it is in use, or was not declared",
                        undeclare.tensor));
  }
  if (tensors_.Release(tensor, rank)) plan_.Remove(tensor);
  return absl::OkStatus();
}

absl::Status NodeGeneration::OnDeviceMessage(Trainer* trainer, const ipc::Encoded& message,
                                             UniqueFd fd) {
  switch (message.fixed.type) {
    case ipc::Type::kDevice:
      rounds_.Use(&device_source_);
      return devices_.OnDevice(*trainer, ipc::DeviceMessage::Decode(message));
    case ipc::Type::kGroupId:
      return devices_.OnGroupId(*trainer, ipc::GroupIdMessage::Decode(message));
    case ipc::Type::kAttach:
      return devices_.OnAttach(trainer, ipc::AttachMessage::Decode(message));
    case ipc::Type::kDeviceFailed:
      return devices_.OnDeviceFailed(*trainer, ipc::DeviceFailedMessage::Decode(message));
    case ipc::Type::kStaged:
      return device_source_.OnStaged(*trainer, ipc::StagedMessage::Decode(message));
    case ipc::Type::kDirect:
      return device_source_.OnDirect(*trainer, ipc::DirectMessage::Decode(message), std::move(fd));
    case ipc::Type::kFetched:
      return device_source_.OnFetched(*trainer, ipc::FetchedMessage::Decode(message));
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown message type %d", static_cast<int>(message.fixed.type)));
  }
}

void NodeGeneration::OnTrainerGone(Trainer* trainer, const absl::Status& why) {
  if (!ranks_.Leave(trainer)) return;
  // First the rounds that complete without the rank: the other nodes have these results too.
  device_source_.OnRankGone(static_cast<uint32_t>(trainer->local_rank));
  if (trainer->said_goodbye) {
    departures_.OnDeparture(*trainer);
  } else if (!state_.failed()) {
    FailForLostRank(*trainer, why);
  }
  state_.EndIfDecided();
  departures_.MaybeReportIdle();
}

void NodeGeneration::FailForLostRank(const Trainer& trainer, const absl::Status& why) {
  const std::string lost =
      absl::StrFormat("%s ended without shutdown: %s", ranks_.Describe(trainer), Message(why));
  if (const absl::Status cause = tensors_.FirstError(); !cause.ok()) {
    // The rank ended because of a refused tensor: ranks that come to the tensor later must hear of
    // it.
    const absl::Status named(cause.code(), absl::StrFormat("%s; %s", Message(cause), lost));
    return state_.Fail(WithKind(named, absl::IsResourceExhausted(cause) ? FailureKind::kResources
                                                                        : FailureKind::kMismatch));
  }
  state_.Fail(WithKind(absl::Status(why.code(), lost), FailureKind::kPeerLost));
}

bool NodeGeneration::Apply(const v1::NodeUpdate& update) {
  if (const PlanVersion told(update.plan_version()); told > context_.counters->plan_version) {
    context_.counters->plan_version = told;
    ++context_.counters->plan_changes;
  }
  context_.journal->SetOptimum(update.optimal_s_per_byte());
  if (update.servers_are_changes()) {
    servers_.LearnChanges(update.servers(), update.servers_gone());
  } else if (update.servers_size() > 0) {
    servers_.Learn(update.servers());
  }
  plan_.Apply(update);
  TakeMembers(update);
  departures_.Apply(update);
  stalls_.Apply(update);
  stall_report_.Apply(update);
  if (update.confirmed_pause() != 0 && context_.pulse->Confirm(update.confirmed_pause())) {
    rounds_.OnPauseConfirmed();
  }
  const bool forms = update.state() == v1::FORMING && context_.job->state != v1::FORMING;
  TakeState(update);
  plan_.AckChange();
  return forms;
}

void NodeGeneration::TakeState(const v1::NodeUpdate& update) {
  if (update.state() == v1::FAILED) {
    state_.FailAsTold(HearFailure(absl::AbortedError(update.reason()),
                                  {update.failed_kind(), update.exit_code()}));
    // The other nodes do not wait for a lost node, and no owner answers it any more.
    const auto& lost = update.lost_nodes();
    if (std::find(lost.begin(), lost.end(), context_.identity->node.value()) != lost.end()) {
      state_.End(/*decided=*/false);
    }
    if (update.decided()) state_.OnAllDecided();
  } else if (state_.running() || state_.failed()) {
    *context_.job = {.state = update.state(), .reason = update.reason()};
  }
}

// Trainers hear how many nodes take part and wait: they may want to let nodes come back.
void NodeGeneration::TakeMembers(const v1::NodeUpdate& update) {
  const uint32_t all = context_.options->num_nodes;
  const uint32_t nodes = all - static_cast<uint32_t>(update.lost_nodes_size());
  if (nodes == nodes_.taking_part && update.waiting_nodes() == nodes_.waiting) return;
  if (nodes < nodes_.taking_part && update.state() == v1::READY) {
    spdlog::warn("the job goes on with {} of {} nodes", nodes, all);
  }
  nodes_ = {.taking_part = nodes, .waiting = update.waiting_nodes()};
  ranks_.TellAll(Members());
}

ipc::MembersMessage NodeGeneration::Members() const {
  return {.nodes = static_cast<int32_t>(nodes_.taking_part),
          .waiting = static_cast<int32_t>(nodes_.waiting)};
}

void NodeGeneration::OnAdmitted(Trainer* trainer) const {
  if (nodes_.taking_part < context_.options->num_nodes || nodes_.waiting > 0) {
    trainer->Send(Members());
  }
}

void NodeGeneration::ReportAgain() const {
  if (departures_.idle_reported()) {
    context_.reports->Send(report::Idle(context_.identity->generation));
  } else if (state_.running()) {
    tensors_.DeclareAgain();
    servers_.ReportAgain();
  }
}

void NodeGeneration::CheckTimeouts() {
  rounds_.NotePause();
  rounds_.MeasureLinks();
  servers_.CloseUnused();
  devices_.CheckMissing();
  departures_.TellAwaited();
  stall_report_.Check();
  stalls_.Check(*rounds_.source());
}

void NodeGeneration::Refuse(const absl::Status& why) {
  state_.FailAsTold(why);
  state_.End(/*decided=*/false);
}

void NodeGeneration::End() {
  ranks_.CloseAll(absl::AbortedError("the generation is over"));
  servers_.Retire(absl::CancelledError("the generation is over"));
}

// Not from within the call that has failed the generation.
void NodeGeneration::OnFailed(bool decided) {
  rounds_.source()->Stop();
  if (!decided) servers_.CloseAll(absl::AbortedError("the job has failed"));
  departures_.MaybeReportIdle();
}

MutableBytes NodeGeneration::RoomForResult(const ServerLink* link, const FrameHeader& header) {
  return rounds_.RoomForResult(link, header);
}

absl::Status NodeGeneration::OnResult(const ServerLink* link, const FrameHeader& header,
                                      const EncodedBytes& result) {
  return rounds_.OnResult(link, header, result);
}

MutableBytes NodeGeneration::RoomForStamp(const ServerLink* link, const FrameHeader& header) {
  return rounds_.RoomForStamp(link, header);
}

void NodeGeneration::OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) {
  rounds_.OnStamp(link, header, stamp);
}

void NodeGeneration::OnSendAgain(const ServerLink* link, const FrameHeader& header) {
  rounds_.OnSendAgain(link, header);
}

void NodeGeneration::OnAborted(const ServerLink* link, const FrameHeader& header) {
  rounds_.OnAborted(link, header);
}

void NodeGeneration::OnMoved(const ServerLink* link, const FrameHeader& header) {
  plan_.OnMoved(link, header);
}

void NodeGeneration::OnRecovered(const ServerLink* link, const FrameHeader& header) {
  plan_.OnRecovered(link, header);
}

void NodeGeneration::OnLinkOpen(ServerLink* link, Incarnation server) {
  if (servers_.OnOpen(link, server)) plan_.OnLinkOpen(link);
}

void NodeGeneration::OnLinkLost(ServerLink* link, const absl::Status& why) {
  if (state_.failed()) return;
  // The job may be over, as this node will hear in a moment. If other nodes still train, they may
  // need what this node has contributed, or holds.
  if (!ranks_.any() && link->open_attempts() == 0) {
    return servers_.ReconnectLater(*link, /*at_once=*/false);
  }
  if (link->path_failed() && context_.counters->direct_bytes > 0 &&
      servers_.knows(link->server())) {
    device_source_.StopReadingDevices(Message(why));
  }
  servers_.OnLost(link, why);
}

}  // namespace addend
