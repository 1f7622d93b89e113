// The part of SummedPartitions that takes sums of other servers in place of nodes' contributions.
#include <memory>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/summation/partition_ports.h"
#include "lib/summation/summed_partitions.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// The relay of a partition that has been recovered has no part in it any more.
bool IsExpected(const JobState& job, const NodePort& relay, const FrameHeader& header,
                const Partition& partition) {
  const SumSpan* const span = partition.SpanOf(ServerOf(relay.node()));
  return header.plan_version == partition.ownership().version() && span != nullptr &&
         *span == SpanIn(header) && job.spec.lost.empty();
}

}  // namespace

absl::StatusOr<MutableBytes> SummedPartitions::PlaceSum(NodePort* relay,
                                                        const FrameHeader& header) {
  Landing::Placed& placed = relay->landing().Begin();
  placed.began = TraceNow();
  const auto it = partitions_.find(header.partition);
  if (it == partitions_.end()) return MutableBytes();
  Partition& partition = *it->second;
  ADDEND_RETURN_IF_ERROR(CheckSumFits(header, partition.spec()));
  placed.partition = it->second;
  if (!IsExpected(*job_, *relay, header, partition) || !partition.ownership().Sums()) {
    return MutableBytes();
  }
  switch (partition.collector().Classify(NodeId(SpanIn(header).first), header.round)) {
    case Collector::Standing::kItsTurn:
      return relay->landing().ScratchFor(header.payload_bytes, &placed);
    case Collector::Standing::kEarly:
      return Landing::EarlyRoomFor(header.payload_bytes, context_->early_buffers.get(),
                                   job_->memory, &placed);
    default:
      return MutableBytes();
  }
}

absl::Status SummedPartitions::OnSum(NodePort* relay, const FrameHeader& header, Payload payload) {
  Landing::Placed placed = relay->TakePlaced(header);
  if (header.payload_bytes == 0) {
    const auto it = partitions_.find(header.partition);
    if (it == partitions_.end()) return absl::OkStatus();
    placed.partition = it->second;
    ADDEND_RETURN_IF_ERROR(CheckSumFits(header, placed.partition->spec()));
  }
  const std::shared_ptr<Partition> partition = placed.partition;
  if (partition == nullptr || !IsExpected(*job_, *relay, header, *partition)) {
    return absl::OkStatus();
  }
  if (partition->ownership().state() == Ownership::State::kClosed) {
    frames_.SendFate(relay, header.round, *partition);
    return absl::OkStatus();
  }
  const absl::Status taken = TakeSum(relay, partition.get(), header, payload, &placed);
  relay->landing().Reuse(&placed);
  CloseIfDue(partition.get());
  return taken;
}

absl::Status SummedPartitions::TakeSum(NodePort* relay, Partition* partition,
                                       const FrameHeader& header, const Payload& payload,
                                       Landing::Placed* placed) {
  if (job_->spec.failed && !partition->aborted()) Abort(partition);
  if (partition->aborted() && header.round == partition->collector().round()) {
    frames_.SendAborted(relay, *partition);
    return absl::OkStatus();
  }
  OpenRound& round = partition->open_round();
  round.Touch(context_->now(), header.priority);
  const SumSpan span = SpanIn(header);
  const Collector::Standing standing = round.collector().Classify(NodeId(span.first), header.round);
  if (standing == Collector::Standing::kSealed) {
    if (partition->Holds(header.round)) frames_.SendResult(relay, *partition);
    return absl::OkStatus();
  }
  if (standing == Collector::Standing::kAhead) return IsAhead(*relay, header, *partition);
  if (standing != Collector::Standing::kItsTurn && standing != Collector::Standing::kEarly) {
    return absl::OkStatus();
  }
  NoteArrival(relay->node(), partition, header, placed->began);
  waiting_.insert(header.partition);
  if (standing == Collector::Standing::kEarly) {
    round.KeepSum(span, header.contributors, std::move(placed->early));
    return absl::OkStatus();
  }
  // Its turn came while the sum was received, and there had been no buffer for it.
  if (payload.bytes().size() != header.payload_bytes) {
    round.Drop(NodeId(span.first));
    return Advance(partition);
  }
  round.TakeSum(span, payload.bytes(), header.contributors);
  ADDEND_RETURN_IF_ERROR(
      NoteSummed(partition, absl::OkStatus(), header.contributors * partition->payload_bytes()));
  return Advance(partition);
}

}  // namespace addend
