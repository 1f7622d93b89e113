// The frames that the owner of a partition sends to a node: results, and headers that say where the
// partition stands. Each is queued once (NodePort::PushOnce). Belongs to a shard's thread.
#pragma once

#include "lib/summation/job_state.h"
#include "lib/summation/latest_partition.h"
#include "lib/summation/node_port.h"
#include "lib/summation/partition.h"
#include "lib/summation/shard_journal.h"

namespace addend {

class PartitionFrames {
 public:
  // `job` outlives this object; `journal` and `encoder` outlive the links.
  PartitionFrames(const JobState* job, ShardJournal* journal, PayloadEncoder* encoder)
      : job_(job), journal_(journal), encoder_(encoder) {}

  // ---- of both kinds of partitions ----
  // RECOVER with kFlagReply: all reports have arrived; names the newest round, in asynchronous mode
  // the node's last round in the value.
  void SendRecovered(NodePort* node, const Partition& partition) const;
  void SendRecovered(NodePort* node, const LatestPartition& partition) const;
  // MOVED: another server is the owner, from the round after the last sealed round on; in
  // asynchronous mode from the round after the node's last round in the value on.
  void SendMoved(NodePort* node, const Partition& partition) const;
  void SendMoved(NodePort* node, const LatestPartition& partition) const;
  // SEND_AGAIN: requests the contribution to the open round; in asynchronous mode to the round
  // after the node's last round in the value.
  void RequestContribution(NodePort* node, const Partition& partition) const;
  void RequestContribution(NodePort* node, const LatestPartition& partition) const;
  // The same for a node's contribution, of the node or of the relay that sends it: if that is not
  // connected, it sends all that it retains when it connects.
  void RequestAgain(NodeId node, const Partition& partition) const;
  // SEND_AGAIN with kFlagResult: requests the newest result, or the node's copy of the value, which
  // this server lacks.
  void RequestResult(NodePort* node, const Partition& partition) const;
  void RequestResult(NodePort* node, const LatestPartition& partition) const;

  // ---- of sums ----
  // RESULT: the result of the round before the open round. Lends its memory until it is sent.
  void SendResult(NodePort* node, const Partition& partition) const;
  // To the sender of a contribution to a partition that is closed: its round's result if that is
  // held, else ABORTED or MOVED.
  void SendFate(NodePort* node, Round round, const Partition& partition) const;
  // ABORTED: the open round will have no result.
  void SendAborted(NodePort* node, const Partition& partition) const;

  // ---- of asynchronous values ----
  // ABORTED: the node's contribution of this round will have no answer.
  void SendAborted(NodePort* node, const LatestPartition& partition, Round round) const;

  // The header of a frame about the partition.
  FrameHeader HeaderFor(FrameType type, const Partition& partition) const {
    return job_->HeaderFor(type, partition.spec(), partition.ownership().version());
  }
  FrameHeader HeaderFor(FrameType type, const LatestPartition& partition) const {
    return job_->HeaderFor(type, partition.spec(), partition.version());
  }

 private:
  const JobState* const job_;
  ShardJournal* const journal_;
  PayloadEncoder* const encoder_;
};

}  // namespace addend
