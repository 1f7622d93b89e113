// The frames that the owner of a partition sends to a node: results, and headers that say where the
// partition stands. Each is queued once (NodePort::PushOnce). Belongs to a shard's thread.
#pragma once

#include "lib/summation/job_state.h"
#include "lib/summation/node_port.h"
#include "lib/summation/partition.h"
#include "lib/summation/shard_journal.h"

namespace addend {

class PartitionFrames {
 public:
  // `job` outlives this object; `journal` outlives the links.
  PartitionFrames(const JobState* job, ShardJournal* journal) : job_(job), journal_(journal) {}

  // RESULT: the result of the round before the open round. Lends its memory until it is sent.
  void SendResult(NodePort* node, const Partition& partition) const;
  // RECOVER with kFlagReply: all reports have arrived; names the newest round.
  void SendRecovered(NodePort* node, const Partition& partition) const;
  // ABORTED: the open round will have no result.
  void SendAborted(NodePort* node, const Partition& partition) const;
  // MOVED: another server is the owner, from the round after the last sealed round on.
  void SendMoved(NodePort* node, const Partition& partition) const;
  // SEND_AGAIN: requests the contribution to the open round.
  void RequestContribution(NodePort* node, const Partition& partition) const;
  // SEND_AGAIN with kFlagResult: requests the newest result, which this server lacks.
  void RequestNewest(NodePort* node, const Partition& partition) const;

 private:
  FrameHeader HeaderFor(FrameType type, const Partition& partition) const {
    return job_->HeaderFor(type, partition.spec(), partition.ownership().version());
  }

  const JobState* const job_;
  ShardJournal* const journal_;
};

}  // namespace addend
