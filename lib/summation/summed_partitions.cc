// The protocol of summed partitions, at the owner. docs/recovery.md describes the changes of the
// owner; spec/recovery.pml models them.
#include "lib/summation/summed_partitions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/summation/partition_ports.h"
#include "lib/summation/roll_call.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// The node has sent the frame for an earlier ownership of this server. It sends the contribution
// again when it follows the present plan.
bool IsOutdated(const FrameHeader& header, const Partition& partition) {
  return header.plan_version < partition.ownership().version();
}

}  // namespace

void SummedPartitions::Add(std::shared_ptr<Partition> partition) {
  NoteRecovery(partition);
  const PartitionId id = partition->spec().id;
  job_->partitions += partitions_.emplace(id, std::move(partition)).second ? 1 : 0;
}

// The roll-call shows for how long the reports of the nodes have been missing.
void SummedPartitions::NoteRecovery(const std::shared_ptr<Partition>& partition) {
  if (partition->ownership().state() != Ownership::State::kRecovering) return;
  partition->open_round().Touch(context_->now(), 0);
  waiting_.insert(partition->spec().id);
}

void SummedPartitions::TakeOver(PartitionId id, PlanVersion version, bool handed_over) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end() || version <= it->second->ownership().version()) return;
  StopReceiving(*job_, *it->second);
  it->second->TakeOver(version, handed_over);
  if (job_->spec.failed) it->second->Abort();
  NoteRecovery(it->second);
}

void SummedPartitions::HandOver(PartitionId id, PlanVersion next) {
  const auto it = partitions_.find(id);
  if (it != partitions_.end() && it->second->HandOver(next)) CloseIfDue(it->second.get());
}

void SummedPartitions::Drop(PartitionId id) {
  waiting_.erase(id);
  auto node = partitions_.extract(id);
  if (node.empty()) return;
  --job_->partitions;
  context_->dropped.Add(std::move(node.mapped()));
}

void SummedPartitions::DropAll() {
  job_->partitions -= partitions_.size();
  waiting_.clear();
  context_->dropped.Add(std::exchange(partitions_, {}));
}

void SummedPartitions::Abort(PartitionId id) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end()) return;
  // A server that has handed over decides nothing: the next owner does.
  if (it->second->ownership().state() != Ownership::State::kClosed) Abort(it->second.get());
}

// The nodes that have contributed to the open round are told now, the others when they contribute.
void SummedPartitions::Abort(Partition* partition) {
  partition->Abort();
  partition->open_round().DropKept();
  waiting_.erase(partition->spec().id);
  if (!partition->ownership().Sums()) return;  // the open round is not known yet
  ForEachPort(*job_, *partition,
              [&](NodeId, NodePort* node) { frames_.SendAborted(node, *partition); });
}

void SummedPartitions::Lose(PartitionId id, NodeId node) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end() || it->second->collector().IsLost(node)) return;
  if (job_->spec.failed && !it->second->aborted()) Abort(id);  // the loss must not seal a round
  Lose(it->second.get(), node);
}

void SummedPartitions::Lose(Partition* partition, NodeId node) {
  const bool lacked = partition->ownership().AnyLacks();
  const Partition::Loss loss = partition->Lose(node);
  if (loss.reports_complete) return EndRecovery(partition);
  if (!loss.status.ok()) return Abort(partition);
  ReplaceHolder(partition);
  // No node lacks the result that is being received.
  if (lacked && !partition->ownership().AnyLacks()) StopReceiving(*job_, *partition);
  if (loss.sealed != Round()) SendResults(partition);
  // Contributions behind the lost node in the order may be kept: they are summed now.
  if (!Advance(partition).ok()) return Abort(partition);
  CloseIfDue(partition);
}

// Another holder of the newest result is asked. Without a holder the round is summed again.
void SummedPartitions::ReplaceHolder(Partition* partition) {
  const Ownership& ownership = partition->ownership();
  if (!ownership.Sums() || !ownership.AnyLacks() || partition->Holds(ownership.newest())) return;
  if (const auto holder = ownership.Holder(); holder.has_value()) {
    if (NodePort* const node = job_->nodes.Find(*holder)) frames_.RequestResult(node, *partition);
    return;
  }
  partition->GoBack();
  ForEachPort(*job_, *partition, [&](NodeId id, auto) { frames_.RequestAgain(id, *partition); });
}

std::vector<PartitionId> SummedPartitions::Ids() const {
  std::vector<PartitionId> ids;
  ids.reserve(partitions_.size());
  for (const auto& [id, partition] : partitions_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  std::stable_partition(ids.begin(), ids.end(),
                        [this](PartitionId id) { return !waiting_.contains(id); });
  return ids;
}

const PartitionSpec* SummedPartitions::SpecOf(PartitionId id) const {
  const auto it = partitions_.find(id);
  return it == partitions_.end() ? nullptr : &it->second->spec();
}

// Null if the partition is not here, or not any more: the node will learn the owner from the
// scheduler.
absl::StatusOr<std::shared_ptr<Partition>> SummedPartitions::Find(const FrameHeader& header) const {
  if (const auto it = partitions_.find(header.partition); it != partitions_.end()) {
    ADDEND_RETURN_IF_ERROR(CheckFit(header, it->second->spec()));
    return it->second;
  }
  if (const PartitionSpec* const other = latest_(header.partition); other != nullptr) {
    ADDEND_RETURN_IF_ERROR(CheckFit(header, *other));
  }
  return nullptr;
}

absl::StatusOr<MutableBytes> SummedPartitions::Place(NodePort* node, const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<Partition> partition, Find(header));
  Landing::Placed& placed = node->landing().Begin();
  placed.partition = std::move(partition);
  placed.began = TraceNow();
  if (placed.partition == nullptr) return MutableBytes();
  return RoomFor(node, header, &placed);
}

absl::StatusOr<MutableBytes> SummedPartitions::RoomFor(NodePort* node, const FrameHeader& header,
                                                       Landing::Placed* placed) {
  Partition& partition = *placed->partition;
  if (header.type == FrameType::kResult) {
    if (header.round != partition.ownership().newest()) return MutableBytes();
    const MutableBytes room = partition.RoomForNewest();
    if (room.empty() || header.encoding == Encoding::kRaw) return room;
    return node->landing().ScratchFor(header.payload_bytes, placed);
  }
  if (!partition.ownership().Sums() || IsOutdated(header, partition)) return MutableBytes();
  partition.Meet(header.round);
  switch (partition.collector().Classify(node->node(), header.round)) {
    case Collector::Standing::kItsTurn:
      if (const MutableBytes room = partition.open_round().DirectRoomFor(header.encoding);
          !room.empty()) {
        return room;
      }
      return node->landing().ScratchFor(header.payload_bytes, placed);
    case Collector::Standing::kEarly:
      return Landing::EarlyRoomFor(header.payload_bytes, context_->early_buffers.get(),
                                   job_->memory, placed);
    default:
      return MutableBytes();
  }
}

absl::Status SummedPartitions::OnContribution(NodePort* node, const FrameHeader& header,
                                              Payload payload) {
  Landing::Placed placed = node->TakePlaced(header);
  std::shared_ptr<Partition>& partition = placed.partition;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, Find(header));
  }
  // The node sends the contribution again when the reports are complete, or to the next owner.
  if (partition == nullptr || IsOutdated(header, *partition) ||
      partition->ownership().state() == Ownership::State::kRecovering) {
    return absl::OkStatus();
  }
  if (partition->ownership().state() == Ownership::State::kClosed) {
    frames_.SendFate(node, header.round, *partition);
    return absl::OkStatus();
  }
  ADDEND_RETURN_IF_ERROR(
      CheckContent(header, placed.ContentOf(header, payload), partition->spec()));
  const absl::Status taken =
      TakeContribution(node, partition.get(), header, std::move(payload), &placed);
  node->landing().Reuse(&placed);
  CloseIfDue(partition.get());
  return taken;
}

absl::Status SummedPartitions::TakeContribution(NodePort* node, Partition* partition,
                                                const FrameHeader& header, Payload payload,
                                                Landing::Placed* placed) {
  partition->Meet(header.round);
  // JobShard aborts the partitions of a failed generation a few at a time.
  if (job_->spec.failed && !partition->aborted()) Abort(partition);
  if (partition->aborted() && header.round == partition->collector().round()) {
    frames_.SendAborted(node, *partition);
    return absl::OkStatus();
  }
  OpenRound& round = partition->open_round();
  round.Touch(context_->now(), header.priority);
  const Collector::Standing standing = round.collector().Classify(node->node(), header.round);
  if (standing == Collector::Standing::kItsTurn || standing == Collector::Standing::kEarly) {
    NoteArrival(node->node(), partition, header, placed->began);
    waiting_.insert(header.partition);
  }
  switch (standing) {
    case Collector::Standing::kItsTurn:
      // The node's turn came while the payload was received, and there had been no buffer for it.
      if (payload.bytes().size() != header.payload_bytes) {
        round.Drop(node->node());
        return Advance(partition);
      }
      return Sum(partition, header, std::move(payload));
    case Collector::Standing::kEarly:
      round.KeepOrDrop(header, std::move(payload), std::move(placed->early),
                       context_->early_buffers.get(), job_->memory);
      return absl::OkStatus();
    case Collector::Standing::kSealed:
      // A result that this server lacks is on its way from a node that holds it.
      if (partition->Holds(header.round)) frames_.SendResult(node, *partition);
      return absl::OkStatus();
    case Collector::Standing::kRepeated:
    case Collector::Standing::kOld:
      return absl::OkStatus();
    case Collector::Standing::kAhead:
      break;
  }
  return IsAhead(*node, header, *partition);
}

// `began`: TraceNow() of the first byte; 0 if the contribution arrived in one piece.
void SummedPartitions::NoteArrival(NodeId node, Partition* partition, const FrameHeader& header,
                                   int64_t began) {
  const int64_t now = TraceNow();
  partition->open_round().gathering().Note(node, now);
  context_->journal.Received({.job = header.job,
                              .generation = header.generation,
                              .partition = header.partition,
                              .round = header.round},
                             node, RawBytesOf(header), began == 0 ? now : began, now);
}

// The contribution of the node whose turn it is, and then the early ones behind it.
absl::Status SummedPartitions::Sum(Partition* partition, const FrameHeader& header,
                                   Payload payload) {
  const bool empty = header.flags & kFlagEmpty;
  const size_t bytes = empty ? 0 : partition->payload_bytes();
  ADDEND_RETURN_IF_ERROR(NoteSummed(
      partition, partition->open_round().Take(std::move(payload), header.encoding, empty), bytes));
  return Advance(partition);
}

// A broadcast whose root is lost has no result: that is no fault of the node that contributed last.
absl::Status SummedPartitions::NoteSummed(Partition* partition, absl::Status status, size_t bytes) {
  if (status.ok()) {
    context_->stats.payload_bytes_summed.fetch_add(bytes, std::memory_order_relaxed);
    job_->totals.payload_bytes += bytes;
  }
  if (status.ok() || !partition->open_round().RootIsLost()) return status;
  Abort(partition);
  return absl::OkStatus();
}

absl::Status SummedPartitions::Advance(Partition* partition) {
  OpenRound& round = partition->open_round();
  while (!partition->aborted()) {
    const Collector::Next next = round.Advance();
    if (next == Collector::Next::kKept) {
      const size_t bytes = round.TurnContributions() * partition->payload_bytes();
      context_->stats.early_kept.fetch_add(1, std::memory_order_relaxed);
      ADDEND_RETURN_IF_ERROR(NoteSummed(partition, round.TakeKept(), bytes));
      continue;
    }
    if (next == Collector::Next::kAsk) {
      context_->stats.early_dropped.fetch_add(1, std::memory_order_relaxed);
      frames_.RequestAgain(round.collector().turn(), *partition);
    }
    Settle(partition);
    break;
  }
  return absl::OkStatus();
}

void SummedPartitions::Settle(Partition* partition) {
  if (partition->aborted() || job_->spec.failed) return;
  Round sealed;
  OpenRound& round = partition->open_round();
  const uint64_t copied = round.copied_bytes();
  const int64_t began = TraceNow();
  partition->Settle(&sealed);
  round.gathering().busy_ns += TraceNow() - began;
  context_->stats.copied_bytes.fetch_add(round.copied_bytes() - copied, std::memory_order_relaxed);
  if (sealed != Round()) SendResults(partition);
}

void SummedPartitions::SendResults(Partition* partition) {
  context_->stats.partitions_sealed.fetch_add(1, std::memory_order_relaxed);
  context_->journal.Summed({.job = job_->spec.id,
                            .generation = job_->spec.generation,
                            .partition = partition->spec().id,
                            .round = partition->LastRound()},
                           partition->open_round().gathering(), &job_->totals);
  partition->open_round().gathering() = {};
  if (!partition->ownership().AnyLacks()) waiting_.erase(partition->spec().id);
  ForEachPort(*job_, *partition,
              [&](NodeId, NodePort* node) { frames_.SendResult(node, *partition); });
}

absl::Status SummedPartitions::OnReport(NodePort* node, const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(const auto partition, Find(header));
  // The scheduler tells this server and the node about the newer of the two plans.
  if (partition == nullptr || header.plan_version != partition->ownership().version()) {
    return absl::OkStatus();
  }
  if (partition->ownership().state() != Ownership::State::kRecovering) {  // repeated
    frames_.SendRecovered(node, *partition);
    if (partition->Holds(Next(header.round))) frames_.SendResult(node, *partition);
    return absl::OkStatus();
  }
  if (partition->OnReport(node->node(), header.round)) EndRecovery(partition.get());
  return absl::OkStatus();
}

absl::Status SummedPartitions::OnSync(NodePort* node, const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(const auto partition, Find(header));
  if (partition == nullptr) return absl::OkStatus();
  const Ownership& ownership = partition->ownership();
  if (ownership.state() == Ownership::State::kClosed &&
      header.plan_version < ownership.next_version()) {
    if (partition->Holds(Next(header.round))) frames_.SendResult(node, *partition);
    frames_.SendMoved(node, *partition);
  }
  if (IsRelay(node->node())) {
    if (ownership.Sums() && partition->aborted()) frames_.SendAborted(node, *partition);
  } else if (ownership.Sums() && ownership.AnyLacks() && !ownership.Lacks(node->node())) {
    frames_.RequestResult(node, *partition);
  }
  return absl::OkStatus();
}

absl::Status SummedPartitions::OnSupplied(NodePort* node, const FrameHeader& header,
                                          Payload payload) {
  Landing::Placed placed = node->TakePlaced(header);  // its buffer may have the payload
  std::shared_ptr<Partition>& partition = placed.partition;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, Find(header));
  }
  if (partition == nullptr || !partition->ownership().AnyLacks() ||
      header.round != partition->ownership().newest() ||
      payload.bytes().size() != header.payload_bytes) {
    return absl::OkStatus();
  }
  const EncodedBytes result{payload.bytes(), header.encoding};
  ADDEND_RETURN_IF_ERROR(CheckContent(header, result, partition->spec()));
  partition->TakeNewest(result);
  node->landing().Reuse(&placed);
  Relay(partition.get());
  return absl::OkStatus();
}

// All reports have arrived: every node learns the newest round, and gets its result.
void SummedPartitions::EndRecovery(Partition* partition) {
  const Ownership& ownership = partition->ownership();
  ForEachPort(*job_, *partition,
              [&](NodeId, NodePort* node) { frames_.SendRecovered(node, *partition); });
  if (!ownership.AnyLacks()) return CloseIfDue(partition);
  if (partition->Holds(ownership.newest())) return Relay(partition);
  // A holder whose link is broken says where it stands when it is back (OnSync).
  if (NodePort* const holder = job_->nodes.Find(*ownership.Holder()); holder != nullptr) {
    frames_.RequestResult(holder, *partition);
  }
}

// Sends the newest result to the nodes that lack it.
void SummedPartitions::Relay(Partition* partition) {
  ForEachPort(*job_, *partition, [&](NodeId id, NodePort* node) {
    if (partition->ownership().Lacks(id)) frames_.SendResult(node, *partition);
  });
  partition->Supplied();
  CloseIfDue(partition);
}

// A failed generation hands nothing over: the next owner could seal a round that is aborted here.
void SummedPartitions::CloseIfDue(Partition* partition) {
  if (partition->ownership().state() != Ownership::State::kClosing) return;
  if (job_->spec.failed) return;
  if (!partition->CloseIfDue(IsReceiving(*partition))) return;
  ForEachPort(*job_, *partition,
              [&](NodeId, NodePort* node) { frames_.SendMoved(node, *partition); });
}

bool SummedPartitions::IsReceiving(const Partition& partition) const {
  return std::any_of(job_->nodes.begin(), job_->nodes.end(), [&](const auto& entry) {
    return entry.second->landing().IsReceiving(partition);
  });
}

void SummedPartitions::OnReceiverLeft(const std::vector<std::shared_ptr<Partition>>& partitions) {
  for (const auto& partition : partitions) CloseIfDue(partition.get());
}

void SummedPartitions::ForgetReferences(NodeId node) {
  for (const PartitionId id : Ids()) partitions_.at(id)->open_round().ForgetReferences(node);
}

// The contributions that are dropped count as dropped when they are requested again.
void SummedPartitions::TrimEarly() {
  for (const PartitionId waiting : waiting_) {  // only open rounds have early contributions
    if (!job_->memory->over_part()) break;
    const auto partition = partitions_.find(waiting);
    if (partition != partitions_.end()) partition->second->open_round().DropKept();
  }
}

void SummedPartitions::RollCall(size_t limit, std::vector<OpenRoundInfo>* out) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto found = partitions_.find(*next);
    if (found == partitions_.end() || !IsWaiting(*found->second)) {
      next = waiting_.erase(next);
      continue;
    }
    if (out->size() >= limit) return;
    out->push_back(DescribeRound(*job_, *found->second, context_->now()));
    ++next;
  }
}

void SummedPartitions::AddNames(std::map<TensorId, std::string>* names) const {
  for (const auto& [id, partition] : partitions_) {
    names->emplace(id.tensor(), partition->spec().name.str());
  }
}

}  // namespace addend
