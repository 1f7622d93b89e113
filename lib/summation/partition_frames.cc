// The owner's frames about a partition. The priorities decide the order in the send queue.
#include "lib/summation/partition_frames.h"

#include <memory>
#include <optional>
#include <utility>

#include "lib/trace/clock.h"

namespace addend {
namespace {

void PushRecovered(NodePort* node, FrameHeader header, Round round) {
  header.flags = kFlagReply;
  header.round = round;
  header.priority = INT32_MAX;
  node->PushOnce(header);
}

// `priority`: of the last result, which has to come first.
void PushMoved(NodePort* node, FrameHeader header, PlanVersion next, Round round,
               int32_t priority) {
  header.plan_version = next;
  header.round = round;
  header.priority = priority;
  node->PushOnce(header);
}

// First in the queue: the partition waits for the answer, and so do all nodes.
void PushRequest(NodePort* node, FrameHeader header, Round round, uint16_t flags) {
  header.flags = flags;
  header.round = round;
  header.priority = INT32_MAX;
  node->PushOnce(header);
}

}  // namespace

void PartitionFrames::SendRecovered(NodePort* node, const Partition& partition) const {
  PushRecovered(node, HeaderFor(FrameType::kRecover, partition), partition.ownership().newest());
}

void PartitionFrames::SendRecovered(NodePort* node, const LatestPartition& partition) const {
  PushRecovered(node, HeaderFor(FrameType::kRecover, partition), partition.Applied(node->node()));
}

void PartitionFrames::SendMoved(NodePort* node, const Partition& partition) const {
  PushMoved(node, HeaderFor(FrameType::kMoved, partition), partition.ownership().next_version(),
            partition.LastRound(), partition.open_round().priority());
}

void PartitionFrames::SendMoved(NodePort* node, const LatestPartition& partition) const {
  PushMoved(node, HeaderFor(FrameType::kMoved, partition), partition.next_version(),
            partition.Applied(node->node()), INT32_MIN);
}

void PartitionFrames::RequestContribution(NodePort* node, const Partition& partition) const {
  PushRequest(node, HeaderFor(FrameType::kSendAgain, partition), partition.collector().round(), 0);
}

void PartitionFrames::RequestAgain(NodeId id, const Partition& partition) const {
  const std::optional<ServerId> relay = IsRelay(id) ? std::nullopt : partition.RelayOf(id);
  NodePort* const port = job_->nodes.Find(relay.has_value() ? RelayId(*relay) : id);
  if (port != nullptr) RequestContribution(port, partition);
}

void PartitionFrames::RequestContribution(NodePort* node, const LatestPartition& partition) const {
  PushRequest(node, HeaderFor(FrameType::kSendAgain, partition),
              Next(partition.Applied(node->node())), 0);
}

void PartitionFrames::RequestResult(NodePort* node, const Partition& partition) const {
  PushRequest(node, HeaderFor(FrameType::kSendAgain, partition), partition.ownership().newest(),
              kFlagResult);
}

void PartitionFrames::RequestResult(NodePort* node, const LatestPartition& partition) const {
  PushRequest(node, HeaderFor(FrameType::kSendAgain, partition), partition.Held(node->node()),
              kFlagResult);
}

void PartitionFrames::SendResult(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kResult, partition);
  header.round = partition.LastRound();
  header.priority = partition.open_round().priority();
  header.contributors = partition.last_outcome().contributors;
  if (partition.last_outcome().nonfinite) header.flags |= kFlagNonFinite;
  const Bytes result = partition.LastResult();
  header.uncompressed_bytes = static_cast<uint32_t>(result.size());
  const ShardJournal::Subject subject{.job = header.job,
                                      .generation = header.generation,
                                      .partition = header.partition,
                                      .round = header.round};
  // `keep`: the tensor may be undeclared before the result is sent.
  node->PushOnce(
      header, result,
      [journal = journal_, keep = partition.shared_from_this(), subject, to = node->node(),
       sealed = TraceNow()](absl::Status status) {
        keep->NoteSent();
        if (!status.ok()) return;
        journal->Sent(subject, to, static_cast<uint32_t>(keep->payload_bytes()), sealed);
      },
      [encoder = encoder_, keep = partition.shared_from_this(), round = header.round, result] {
        return keep->EncodeResult(round, result, encoder);
      });
}

void PartitionFrames::SendFate(NodePort* node, Round round, const Partition& partition) const {
  if (partition.Holds(round)) {
    SendResult(node, partition);
  } else if (partition.aborted()) {
    SendAborted(node, partition);
  } else {
    SendMoved(node, partition);
  }
}

void PartitionFrames::SendAborted(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kAborted, partition);
  if (!job_->spec.failed) header.flags = kFlagEmpty;
  header.round = partition.collector().round();
  header.priority = partition.open_round().priority();
  node->PushOnce(header);
}

void PartitionFrames::SendAborted(NodePort* node, const LatestPartition& partition,
                                  Round round) const {
  FrameHeader header = HeaderFor(FrameType::kAborted, partition);
  header.round = round;
  node->PushOnce(header);
}

}  // namespace addend
