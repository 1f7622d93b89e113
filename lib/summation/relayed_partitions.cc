// The way of contributions through a relay, and of results back.
#include "lib/summation/relayed_partitions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/summation/roll_call.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// The frame as the open round of the span takes it, with the sender's number in the span.
FrameHeader InSpan(const RelayedPartition& partition, FrameHeader header) {
  header.sender =
      header.type == FrameType::kPartialSum ? 0 : partition.Local(NodeId(header.sender)).value();
  return header;
}

}  // namespace

RelayedPartitions::RelayedPartitions(JobState* job, ShardContext* context)
    : job_(job), context_(context), links_(job, context->outgoing, this) {}

void RelayedPartitions::Add(Shared partition) {
  const PartitionId id = partition->spec().id;
  partitions_.emplace(id, std::move(partition));
}

void RelayedPartitions::Drop(PartitionId id) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end()) return;
  const RelayOrder& order = it->second->order();
  if (ServerLink* const link = links_.Find(order.to, order.to_shard);
      link != nullptr && link->IsReceiving(id)) {
    link->Reset(absl::UnavailableError("a partition is relayed no more"));
  }
  partitions_.erase(it);
}

void RelayedPartitions::DropAll() {
  links_.CloseAll(absl::CancelledError("the job relays nothing here any more"));
  partitions_.clear();
}

bool RelayedPartitions::IsAbout(const FrameHeader& header) const {
  const auto it = partitions_.find(header.partition);
  return it != partitions_.end() && it->second->spec().version == header.plan_version;
}

absl::Status RelayedPartitions::CheckSender(const NodePort& port, const FrameHeader& header,
                                            const RelayedPartition& partition) {
  if (!partition.Expects(port.node())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a %s of %s for partition %d of '%s', which this server relays for other nodes",
        addend::Name(header.type), port.Name(), header.partition.index(),
        partition.spec().name.str()));
  }
  if (header.type == FrameType::kContribution) return CheckFit(header, partition.spec());
  if (header.type != FrameType::kPartialSum) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(CheckSumFits(header, partition.spec()));
  const SumSpan before{.first = partition.order().span.first, .count = partition.Before().count};
  if (SpanIn(header) == before) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a %s of %s for partition %d of '%s' has other nodes than were agreed",
                      addend::Name(header.type), port.Name(), header.partition.index(),
                      partition.spec().name.str()));
}

absl::StatusOr<MutableBytes> RelayedPartitions::Place(NodePort* port, const FrameHeader& header) {
  const Shared partition = partitions_.at(header.partition);
  Landing::Placed& placed = port->landing().Begin();
  placed.relayed = partition;
  placed.began = TraceNow();
  ADDEND_RETURN_IF_ERROR(CheckSender(*port, header, *partition));
  if (partition->end().has_value()) return MutableBytes();
  const NodeId sender(InSpan(*partition, header).sender);
  switch (partition->open_round().collector().Classify(sender, header.round)) {
    case Collector::Standing::kItsTurn:
      if (header.type == FrameType::kContribution) {
        const MutableBytes room = partition->open_round().DirectRoomFor(header.encoding);
        if (!room.empty()) return room;
      }
      return port->landing().ScratchFor(header.payload_bytes, &placed);
    case Collector::Standing::kEarly:
      return Landing::EarlyRoomFor(header.payload_bytes, context_->early_buffers.get(),
                                   job_->memory, &placed);
    default:
      return MutableBytes();
  }
}

absl::Status RelayedPartitions::OnContribution(NodePort* port, const FrameHeader& header,
                                               Payload payload) {
  Landing::Placed placed = port->TakePlaced(header);
  if (placed.relayed == nullptr) {
    const auto it = partitions_.find(header.partition);
    if (it == partitions_.end()) return absl::OkStatus();
    placed.relayed = it->second;
    ADDEND_RETURN_IF_ERROR(CheckSender(*port, header, *placed.relayed));
  }
  const Shared partition = placed.relayed;
  if (header.type == FrameType::kContribution) {
    ADDEND_RETURN_IF_ERROR(
        CheckContent(header, placed.ContentOf(header, payload), partition->spec()));
  }
  const absl::Status taken = Take(port, partition, header, std::move(payload), &placed);
  port->landing().Reuse(&placed);
  return taken;
}

absl::Status RelayedPartitions::Take(NodePort* port, const Shared& partition,
                                     const FrameHeader& header, Payload payload,
                                     Landing::Placed* placed) {
  if (TellEnd(port, header.round, *partition)) return absl::OkStatus();
  OpenRound& round = partition->open_round();
  const FrameHeader local = InSpan(*partition, header);
  const Collector::Standing standing =
      round.collector().Classify(NodeId(local.sender), local.round);
  switch (standing) {
    case Collector::Standing::kItsTurn:
    case Collector::Standing::kEarly:
      break;
    case Collector::Standing::kSealed:
      if (partition->held() == header.round) SendResult(port, partition);
      return absl::OkStatus();
    case Collector::Standing::kRepeated:
    case Collector::Standing::kOld:
      return absl::OkStatus();
    case Collector::Standing::kAhead:
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s pushed round %d of '%s', of which round %d is relayed here", port->Name(),
          header.round.value(), partition->spec().name.str(), round.collector().round().value()));
  }
  // Nobody has the result of the last round without which the next does not begin.
  if (partition->AwaitsResult()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s pushed round %d of '%s' before it had the result of round %d", port->Name(),
        header.round.value(), partition->spec().name.str(), partition->Summed().value()));
  }
  round.Touch(context_->now(), header.priority);
  // The owner may have given up the round: it says so when this server is connected.
  links_.LinkTo(partition->order().to, partition->order().to_shard);
  context_->journal.Received({.job = header.job,
                              .generation = header.generation,
                              .partition = header.partition,
                              .round = header.round},
                             port->node(), RawBytesOf(header),
                             placed->began == 0 ? TraceNow() : placed->began, TraceNow());
  if (standing == Collector::Standing::kEarly) {
    Keep(partition, local, std::move(payload), std::move(placed->early));
    return absl::OkStatus();
  }
  // Its turn came while the payload was received, and there had been no buffer for it.
  if (payload.bytes().size() != header.payload_bytes) {
    round.Drop(NodeId(local.sender));
  } else {
    ADDEND_RETURN_IF_ERROR(TakeInTurn(partition, local, std::move(payload)));
  }
  return Advance(partition);
}

absl::Status RelayedPartitions::TakeInTurn(const Shared& partition, const FrameHeader& header,
                                           Payload payload) {
  OpenRound& round = partition->open_round();
  if (header.type == FrameType::kPartialSum) {
    round.TakeSum(partition->Before(), payload.bytes(), header.contributors);
    CountSummed(partition, header.contributors);
    return absl::OkStatus();
  }
  const bool empty = header.flags & kFlagEmpty;
  CountSummed(partition, empty ? 0 : 1);
  return round.Take(std::move(payload), header.encoding, empty);
}

void RelayedPartitions::CountSummed(const Shared& partition, uint64_t contributions) {
  const uint64_t bytes = contributions * partition->spec().payload_bytes();
  context_->stats.payload_bytes_summed.fetch_add(bytes, std::memory_order_relaxed);
  job_->totals.payload_bytes += bytes;
}

void RelayedPartitions::Keep(const Shared& partition, const FrameHeader& header, Payload payload,
                             std::unique_ptr<EarlyContribution> early) {
  OpenRound& round = partition->open_round();
  if (header.type == FrameType::kPartialSum) {
    return round.KeepSum(partition->Before(), header.contributors, std::move(early));
  }
  round.KeepOrDrop(header, std::move(payload), std::move(early), context_->early_buffers.get(),
                   job_->memory);
}

absl::Status RelayedPartitions::Advance(const Shared& partition) {
  OpenRound& round = partition->open_round();
  Collector::Next next = round.Advance();
  for (; next == Collector::Next::kKept; next = round.Advance()) {
    CountSummed(partition, round.TurnContributions());
    ADDEND_RETURN_IF_ERROR(round.TakeKept());
  }
  if (next == Collector::Next::kAsk) Request(round.collector().turn(), partition);
  if (partition->Settle()) SendSum(partition);
  return absl::OkStatus();
}

void RelayedPartitions::SendSum(const Shared& partition) {
  const RelayOrder& order = partition->order();
  ServerLink* const link = links_.LinkTo(order.to, order.to_shard);
  if (link == nullptr) return;  // the scheduler knows of the trouble
  FrameHeader header = HeaderForOwner(FrameType::kPartialSum, *partition);
  header.round = partition->Summed();
  header.priority = partition->priority();
  header.contributors = partition->with_data();
  header.detail = DetailOf(order.span);
  if (partition->with_data() == 0) header.flags = kFlagEmpty;
  link->Push(header, partition->Sum(), [keep = partition](const absl::Status&) {});
}

// ACK: where this relay stands.
void RelayedPartitions::Sync(const RelayedPartition& partition) {
  FrameHeader header = HeaderForOwner(FrameType::kAck, partition);
  header.round = partition.held();
  const RelayOrder& order = partition.order();
  if (ServerLink* const link = links_.LinkTo(order.to, order.to_shard)) {
    link->Push(header, {}, nullptr);
  }
}

FrameHeader RelayedPartitions::HeaderForOwner(FrameType type,
                                              const RelayedPartition& partition) const {
  FrameHeader header = HeaderFor(type, partition);
  header.sender = RelayId(ServerId(header.sender)).value();
  return header;
}

// Of the relay before, or of the node.
void RelayedPartitions::Request(NodeId local, const Shared& partition) {
  const RelayOrder& order = partition->order();
  const NodeId node(local.value() + order.span.first);
  NodePort* const port =
      job_->nodes.Find(node.value() < order.first_node ? RelayId(order.before) : node);
  if (port == nullptr) return;
  FrameHeader header = HeaderFor(FrameType::kSendAgain, *partition);
  header.round = partition->open_round().collector().round();
  header.priority = INT32_MAX;
  port->PushOnce(header);
}

void RelayedPartitions::SendResult(NodePort* port, const Shared& partition) const {
  FrameHeader header = HeaderFor(FrameType::kResult, *partition);
  const FrameHeader& told = partition->result_header();
  header.round = told.round;
  header.priority = told.priority;
  header.contributors = told.contributors;
  header.flags = told.flags & kFlagNonFinite;
  const Bytes result = partition->Result();
  header.uncompressed_bytes = static_cast<uint32_t>(result.size());
  port->PushOnce(header, result, [keep = partition](const absl::Status&) {});
}

bool RelayedPartitions::TellEnd(NodePort* port, Round round,
                                const RelayedPartition& partition) const {
  const std::optional<FrameHeader>& end = partition.end();
  if (!end.has_value() || round <= partition.held()) return false;
  FrameHeader header = HeaderFor(end->type, partition);
  header.round = end->round;
  header.priority = end->priority;
  header.flags = end->flags & kFlagEmpty;
  if (end->type == FrameType::kMoved) header.plan_version = end->plan_version;
  port->PushOnce(header);
  return true;
}

template <typename Visit>
void RelayedPartitions::ForEachPort(const RelayedPartition& partition, const Visit& visit) const {
  job_->nodes.ForEachFrom(job_->FirstServed(), [&](NodeId id, NodePort* port) {
    if (partition.Expects(id)) visit(port);
  });
}

absl::Status RelayedPartitions::OnSync(NodePort* port, const FrameHeader& header) const {
  const auto it = partitions_.find(header.partition);
  if (it == partitions_.end()) return absl::OkStatus();
  const Shared& partition = it->second;
  ADDEND_RETURN_IF_ERROR(CheckSender(*port, header, *partition));
  if (partition->held() == Next(header.round)) SendResult(port, partition);
  TellEnd(port, Next(partition->held()), *partition);
  return absl::OkStatus();
}

void RelayedPartitions::ForgetReferences(NodeId node) {
  for (const auto& [id, partition] : partitions_) {
    if (IsRelay(node) || !partition->Expects(node)) continue;
    partition->open_round().ForgetReferences(partition->Local(node));
  }
}

void RelayedPartitions::TrimEarly() {
  for (const auto& [id, partition] : partitions_) {
    if (!job_->memory->over_part()) break;
    partition->open_round().DropKept();
  }
}

void RelayedPartitions::RollCall(size_t limit, std::vector<OpenRoundInfo>* out) const {
  std::vector<PartitionId> ids;
  for (const auto& [id, partition] : partitions_) {
    const bool open = partition->open_round().collector().IsOpen();
    if (open && !partition->end().has_value()) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const PartitionId id : ids) {
    const Shared& partition = partitions_.at(id);
    const Collector& collector = partition->open_round().collector();
    if (out->size() >= limit) return;
    OpenRoundInfo info = InfoOf(*job_, partition->spec(), partition->open_round(), context_->now());
    info.state = "relaying";
    const SumSpan& span = partition->order().span;
    for (uint32_t i = 0; i < span.count; ++i) {
      (collector.HasPushed(NodeId(i)) ? info.pushed : info.missing)
          .push_back(NodeId(span.first + i));
    }
    out->push_back(std::move(info));
  }
}

RelayedPartitions::Shared RelayedPartitions::FindFor(const ServerLink* link,
                                                     const FrameHeader& header) const {
  const auto it = partitions_.find(header.partition);
  if (it == partitions_.end()) return nullptr;
  const RelayOrder& order = it->second->order();
  const bool fits = order.to == link->server() && order.to_shard == link->shard();
  return fits ? it->second : nullptr;
}

MutableBytes RelayedPartitions::RoomForResult(const ServerLink* link, const FrameHeader& header) {
  const Shared partition = FindFor(link, header);
  if (partition == nullptr || header.plan_version != partition->spec().version ||
      RawBytesOf(header) != partition->spec().payload_bytes()) {
    return {};
  }
  return partition->RoomFor(header.round);
}

absl::Status RelayedPartitions::OnResult(const ServerLink* link, const FrameHeader& header,
                                         const EncodedBytes& result) {
  const Shared partition = FindFor(link, header);
  if (partition == nullptr || RoomForResult(link, header).empty()) return absl::OkStatus();
  if (!result.raw() && !IsWellFormed(result, partition->spec().dtype, partition->spec().elements)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a result of partition %d of '%s' is not well-formed",
                        header.partition.index(), partition->spec().name.str()));
  }
  partition->TakeResult(header, result);
  ForEachPort(*partition, [&](NodePort* port) { SendResult(port, partition); });
  return absl::OkStatus();
}

void RelayedPartitions::OnSendAgain(const ServerLink* link, const FrameHeader& header) {
  const Shared partition = FindFor(link, header);
  if (partition == nullptr || header.plan_version != partition->spec().version) return;
  if (partition->AwaitsResult() && partition->Summed() == header.round) SendSum(partition);
}

void RelayedPartitions::OnMoved(const ServerLink* link, const FrameHeader& header) {
  const Shared partition = FindFor(link, header);
  if (partition == nullptr || header.plan_version <= partition->spec().version) return;
  // A reset has lost the result of the last round, which the owner is asked for.
  if (partition->held() < header.round) {
    return Sync(*partition);
  }
  partition->End(header);
  const Round next = Next(partition->held());
  ForEachPort(*partition, [&](NodePort* port) { TellEnd(port, next, *partition); });
}

void RelayedPartitions::OnAborted(const ServerLink* link, const FrameHeader& header) {
  const Shared partition = FindFor(link, header);
  if (partition == nullptr || header.plan_version != partition->spec().version ||
      header.round <= partition->held()) {
    return;
  }
  partition->End(header);
  ForEachPort(*partition, [&](NodePort* port) { TellEnd(port, header.round, *partition); });
}

// As a node does whose link is new, or was reset.
void RelayedPartitions::OnLinkOpen(ServerLink* link, Incarnation server) {
  links_.OnOpen(link, server);
  std::vector<Shared> relayed;
  for (const auto& [id, partition] : partitions_) {
    const RelayOrder& order = partition->order();
    const bool leads = order.to == link->server() && order.to_shard == link->shard();
    const bool concerned =
        partition->AwaitsResult() || partition->open_round().collector().IsOpen();
    if (leads && concerned) relayed.push_back(partition);
  }
  std::sort(relayed.begin(), relayed.end(),
            [](const Shared& a, const Shared& b) { return a->spec().id < b->spec().id; });
  for (const Shared& partition : relayed) {
    Sync(*partition);
    if (link->has_forgotten() && partition->AwaitsResult()) SendSum(partition);
  }
}

void RelayedPartitions::OnLinkLost(ServerLink* link, const absl::Status& why) {
  links_.OnLost(link, why);
}

}  // namespace addend
