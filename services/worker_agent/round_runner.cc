// Push, contribution, result and completion of a round.
#include "services/worker_agent/round_runner.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/traffic.h"
#include "lib/wire/stamp.h"
#include "services/worker_agent/node_frames.h"

namespace addend {
namespace {

// The error of the tensor, in the round.
ipc::ResultMessage ErrorOf(const NodeTensor& tensor, uint64_t round) {
  return {.tensor = tensor.number,
          .round = round,
          .code = tensor.error_code,
          .reason = Message(tensor.error)};
}

// The part of the round's slot for the partition's result, which is about to be written.
MutableBytes RoomIn(NodeTensor* tensor, uint32_t partition, int64_t now) {
  tensor->results->reads()->load(std::memory_order_acquire);
  int64_t& first_in = tensor->times[partition].first_in;
  if (first_in == 0) first_in = now;
  return tensor->ResultOf(partition, tensor->rounds.round());
}

}  // namespace

absl::Status RoundRunner::OnPush(const Shared& tensor, Trainer* trainer,
                                 const ipc::PushMessage& push) {
  if (!tensor->error.ok()) {
    trainer->Send(ErrorOf(*tensor, push.round));
    return absl::OkStatus();
  }
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  context_.counters->spun_us += push.spun_us;
  ADDEND_RETURN_IF_ERROR(tensor->rounds.OnPush(rank, Round(push.round), push.empty));
  if (tensor->open.since == absl::InfiniteFuture()) tensor->open.since = context_.loop->Now();
  const int64_t now = context_.loop->TraceTime();
  tensor->NotePush(rank, now - static_cast<int64_t>(std::min<uint64_t>(push.copied_in_ns, now)),
                   now);
  tensor->priority = push.priority;
  source_->OnPush(tensor, rank, push.on_device);
  TryStart(tensor);
  return absl::OkStatus();
}

void RoundRunner::TryStart(const Shared& tensor) {
  TensorRounds& rounds = tensor->rounds;
  if (!tensor->planned() || rounds.running() || !rounds.AllPushed() || !state_->running()) return;
  if (!tensor->error.ok()) return;  // its plan came late
  // An error here would leave the other nodes waiting: it ends the job.
  if (absl::Status status = tensor->PrepareContribution(); !status.ok()) {
    return state_->Fail(WithKind(status, FailureKind::kMismatch));
  }
  servers_->LimitInFlight(nodes_->taking_part);
  rounds.Start(tensor->partitions());
  context_.journal->RoundStarts(*tensor);
  if (tensor->partitions() == 0) return Complete(tensor.get());
  context_.convoy->OnPush(tensor->priority, tensor->bytes);
  const std::vector<uint64_t> places = tensor->PlacesSideBySide(context_.identity->node);
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    source_->Begin({.tensor = tensor,
                    .partition = partition,
                    .round = rounds.round(),
                    .priority = tensor->priority,
                    .place = context_.counters->stream_bytes + places[partition]});
  }
  context_.counters->stream_bytes += tensor->bytes;
}

void RoundRunner::OnReady(PartitionPush push) {
  NodeTensor& tensor = *push.tensor;
  tensor.times[push.partition].ready = context_.loop->TraceTime();
  ++context_.counters->partitions_out;
  Send(push);
  integrity_->OnPushed(push, source_);
  PushedPartition& pushed = tensor.pushed[push.partition];
  pushed.awaits_result = true;
  pushed.result_waits = false;
  pushed.priority = push.priority;
  pushed.place = push.place;
}

// Also for a server that asks again. Does nothing while the owner has not said which round comes
// next.
void RoundRunner::Send(const PartitionPush& push) {
  NodeTensor& tensor = *push.tensor;
  const PartitionOwner& owner = tensor.owners[push.partition];
  if (owner.reported || !source_->Reads(push)) return;
  ++context_.counters->contributions_sent;
  const Bytes payload = tensor.Contribution(push.partition);
  FrameHeader header =
      HeaderFor(*context_.identity, tensor, push.partition, FrameType::kContribution);
  header.flags = tensor.contribution_is_empty ? kFlagEmpty : 0;
  header.round = push.round;
  header.priority = push.priority;
  header.contributors = 1;
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  // The tensor keeps the memory that is lent.
  PartitionTimes* const times = &tensor.times[push.partition];
  owner.link->Push(
      header, payload,
      [keep = push.tensor, times, clock = context_.clock](absl::Status) {
        times->last_out = clock->TraceTime();
      },
      push.place, &times->first_out, EncoderOf(push.tensor, push.partition, payload));
}

// Null for a contribution in the memory of a GPU, which only devices read.
EncodeFn RoundRunner::EncoderOf(const Shared& tensor, uint32_t partition, Bytes payload) {
  if (payload.empty()) return nullptr;
  if (!tensor->IsOnHost(partition)) {
    context_.counters->contribution_bytes += payload.size();
    context_.counters->contribution_wire_bytes += payload.size();
    return nullptr;
  }
  return [this, tensor, partition, payload] {
    PayloadEncoder::History& history = tensor->pushed[partition].encodings;
    const EncodedPayload encoded = context_.encoder->Encode(tensor->shape.dtype, payload, &history,
                                                            {.wanted = tensor->shape.wire.lossy()});
    context_.counters->contribution_bytes += payload.size();
    context_.counters->contribution_wire_bytes +=
        encoded.content.raw() ? payload.size() : encoded.content.bytes.size();
    return encoded;
  };
}

void RoundRunner::MeasureLinks() {
  absl::Duration busiest = absl::ZeroDuration();
  for (const auto& [key, link] : servers_->links()) {
    busiest = std::max(busiest, link->TakeSendingTime());
  }
  const Transport* const transports[] = {context_.transports.tcp, context_.transports.rdma};
  context_.encoder->costs()->NoteTraffic(TrafficOf(transports), busiest);
}

void RoundRunner::Resend(const Shared& tensor, uint32_t partition, Round held) {
  const PushedPartition& pushed = tensor->pushed[partition];
  const Round round = tensor->rounds.round();
  if (state_->failed() || !pushed.awaits_result || round <= held) return;
  Send({.tensor = tensor,
        .partition = partition,
        .round = round,
        .priority = pushed.priority,
        .place = pushed.place});
}

RoundRunner::Shared RoundRunner::Expecting(const ServerLink* link,
                                           const FrameHeader& header) const {
  Shared tensor = FindOwned(*context_.identity, *tensors_, link, header);
  const uint32_t partition = header.partition.index();
  const bool wanted = tensor != nullptr && tensor->rounds.Wants(partition, header.round) &&
                      !tensor->pushed[partition].result_waits;
  return wanted ? tensor : nullptr;
}

MutableBytes RoundRunner::RoomForResult(const ServerLink* link, const FrameHeader& header) const {
  const Shared tensor = Expecting(link, header);
  const uint32_t partition = header.partition.index();
  if (tensor == nullptr || RawBytesOf(header) != tensor->BytesOf(partition)) return {};
  return RoomIn(tensor.get(), partition, context_.loop->TraceTime());
}

absl::Status RoundRunner::OnResult(const ServerLink* link, const FrameHeader& header,
                                   const EncodedBytes& result) {
  const Shared tensor = Expecting(link, header);
  const uint32_t partition = header.partition.index();
  const size_t bytes = tensor == nullptr ? 0 : tensor->BytesOf(partition);
  if (bytes == 0 || RawBytesOf(header) != bytes) return absl::OkStatus();
  const DType dtype = tensor->shape.dtype;
  const uint64_t elements = bytes / SizeOf(dtype);
  if (!IsWellFormed(result, dtype, elements)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the result of partition %d of '%s' has %d bytes that are no encoding of %d elements",
        partition, tensor->shape.name, result.bytes.size(), elements));
  }
  const MutableBytes room = RoomIn(tensor.get(), partition, context_.loop->TraceTime());
  context_.counters->copied_bytes += Decode(result, dtype, elements, room.data());
  if (const Traits& traits = link->transport().traits();
      !traits.by_reference && !traits.same_machine) {
    context_.counters->result_bytes += bytes;
    context_.counters->result_wire_bytes += result.bytes.size();
  }
  tensor->times[partition].last_in = context_.loop->TraceTime();  // the copy included
  integrity_->OnResult(*tensor, partition, header.round);
  DeliverWhenCopied(link, header, tensor);
  return absl::OkStatus();
}

void RoundRunner::DeliverWhenCopied(const ServerLink* link, const FrameHeader& header,
                                    const Shared& tensor) {
  const uint32_t partition = header.partition.index();
  const bool finite = !(header.flags & kFlagNonFinite);
  const auto deliver = [this, tensor, partition, finite](bool there) {
    if (!finite && there) integrity_->OnNonFinite(*tensor, partition, *source_);
    Deliver(tensor, partition);
  };
  if (source_->MayEnd(*tensor, partition, /*on_host=*/!finite)) return deliver(true);
  tensor->pushed[partition].result_waits = tensor->asynchronous();
  // By then this node may have told a new owner that it does not hold the result, which comes
  // again.
  source_->Bring(tensor, partition, [this, link, header, tensor, deliver](bool there) {
    const uint32_t index = header.partition.index();
    const bool refused = std::exchange(tensor->pushed[index].result_waits, false);
    const Shared expecting = Expecting(link, header);
    if (expecting != nullptr && !expecting->owners[index].reported) return deliver(there);
    if (refused) Resend(tensor, index);  // the new owner's answer may have been refused meanwhile
  });
}

MutableBytes RoundRunner::RoomForStamp(const ServerLink* link, const FrameHeader& header) const {
  const Shared tensor = Expecting(link, header);
  if (tensor == nullptr || !tensor->asynchronous() ||
      header.payload_bytes != StampBytes(context_.options->num_nodes)) {
    return {};
  }
  std::vector<std::byte>& coming = tensor->stamps[header.partition.index()].coming;
  coming.resize(header.payload_bytes);
  return coming;
}

void RoundRunner::OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) const {
  const MutableBytes room = RoomForStamp(link, header);
  if (!room.empty() && room.data() != stamp.data()) {
    std::memcpy(room.data(), stamp.data(), stamp.size());
  }
}

void RoundRunner::OnSendAgain(const ServerLink* link, const FrameHeader& header) {
  const uint32_t partition = header.partition.index();
  if (header.flags & kFlagResult) {
    // The newest result that this node has reported, for a node that lacks it.
    const Shared tensor = FindOwned(*context_.identity, *tensors_, link, header);
    if (tensor == nullptr || tensor->rounds.Held(partition) != header.round) return;
    return SendHeldResult(*context_.identity, tensor, partition, header.round, context_.encoder);
  }
  const Shared tensor = Expecting(link, header);
  if (tensor == nullptr) return;
  // All nodes wait for it.
  Send({.tensor = tensor,
        .partition = partition,
        .round = header.round,
        .priority = INT32_MAX,
        .place = 0});
}

void RoundRunner::Deliver(const Shared& tensor, uint32_t partition) {
  PushedPartition& pushed = tensor->pushed[partition];
  if (state_->failed() || !std::exchange(pushed.awaits_result, false)) return;
  // Not before: a report must not give the stamp of a result that this node does not hold.
  if (tensor->asynchronous()) tensor->stamps[partition].Take();
  tensor->owners[partition].link->Arrived(PartitionId(tensor->id, partition));
  source_->OnDelivered(*tensor, partition);
  if (tensor->rounds.OnResult(partition)) CompleteOrAsk(tensor);
}

void RoundRunner::NotePause() {
  if (!context_.pulse->Beat(context_.clock->Now(), context_.lease)) return;
  spdlog::warn(
      "this process did not run for a while: no result is told until the scheduler has "
      "confirmed that this node still takes part");
  context_.reports->BeatSoon();
}

// A tensor that was refused in the middle of a round may still get the round's result, since the
// node that declared it otherwise may be lost. Its ranks have been told the refusal.
void RoundRunner::CompleteOrAsk(const Shared& tensor) {
  if (!tensor->error.ok()) return;
  NotePause();
  if (!context_.pulse->asking()) return Complete(tensor.get());
  unconfirmed_.push_back(tensor);
}

void RoundRunner::OnPauseConfirmed() {
  for (const Shared& tensor : std::exchange(unconfirmed_, {})) {
    if (!state_->failed() && tensor->error.ok()) Complete(tensor.get());
  }
}

void RoundRunner::Complete(NodeTensor* tensor) {
  const ipc::ResultMessage message{.tensor = tensor->number,
                                   .round = tensor->rounds.round().value()};
  context_.journal->RoundEnds(tensor, context_.loop->TraceTime());
  tensor->EndRound();
  ++context_.counters->rounds;
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    if (tensor->rounds.TakesPart(rank)) ranks_->Tell(rank, message);
  }
  state_->EndIfDecided();
}

void RoundRunner::FailTensor(NodeTensor* tensor, absl::Status why) {
  if (!tensor->error.ok()) return;
  tensor->error = std::move(why);
  tensor->error_code = TraitsOf(KindOf(tensor->error)).addend_code;
  if (tensor->rounds.running()) context_.journal->RoundFails();
  const ipc::ResultMessage message = ErrorOf(*tensor, tensor->rounds.round().value());
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    if (tensor->rounds.HasPushed(rank)) ranks_->Tell(rank, message);
  }
  tensor->open.since = absl::InfiniteFuture();
  state_->EndIfDecided();
}

void RoundRunner::OnAborted(const ServerLink* link, const FrameHeader& header) {
  const Shared tensor = Expecting(link, header);
  // A new owner first says which round comes next.
  if (tensor == nullptr || tensor->owners[header.partition.index()].reported) return;
  if (header.flags & kFlagEmpty) {
    ForgetPushes(tensor.get());
    return FailTensor(
        tensor.get(),
        MakeFailure(FailureKind::kPeerLost,
                    absl::StrFormat("the root of broadcast '%s' is on a node that was lost",
                                    tensor->shape.name)));
  }
  tensor->open.aborted = true;
  state_->EndIfDecided();
}

void RoundRunner::ForgetPushes(NodeTensor* tensor) {
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    if (!std::exchange(tensor->pushed[partition].awaits_result, false)) continue;
    tensor->owners[partition].link->Arrived(PartitionId(tensor->id, partition));
  }
}

}  // namespace addend
