// The owner's frames about a summed partition. The priorities decide the order in the send queue.
#include "lib/summation/partition_frames.h"

#include <memory>
#include <utility>

#include "lib/trace/clock.h"

namespace addend {

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
  node->PushOnce(header, result,
                 [journal = journal_, keep = partition.shared_from_this(), subject,
                  to = node->node(), sealed = TraceNow()](absl::Status status) {
                   keep->NoteSent();
                   if (!status.ok()) return;
                   journal->Sent(subject, to, static_cast<uint32_t>(keep->payload_bytes()), sealed);
                 });
}

void PartitionFrames::SendRecovered(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kRecover, partition);
  header.flags = kFlagReply;
  header.round = partition.ownership().newest();
  header.priority = INT32_MAX;
  node->PushOnce(header);
}

void PartitionFrames::SendAborted(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kAborted, partition);
  if (!job_->spec.failed) header.flags = kFlagEmpty;
  header.round = partition.collector().round();
  header.priority = partition.open_round().priority();
  node->PushOnce(header);
}

void PartitionFrames::SendMoved(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kMoved, partition);
  header.plan_version = partition.ownership().next_version();
  header.round = partition.LastRound();
  header.priority = partition.open_round().priority();  // behind the result of that round
  node->PushOnce(header);
}

void PartitionFrames::RequestContribution(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kSendAgain, partition);
  header.round = partition.collector().round();
  header.priority = INT32_MAX;  // all nodes wait for this contribution
  node->PushOnce(header);
}

void PartitionFrames::RequestNewest(NodePort* node, const Partition& partition) const {
  FrameHeader header = HeaderFor(FrameType::kSendAgain, partition);
  header.flags = kFlagResult;
  header.round = partition.ownership().newest();
  header.priority = INT32_MAX;
  node->PushOnce(header);
}

}  // namespace addend
