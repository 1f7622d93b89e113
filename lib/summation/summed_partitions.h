// A job's summed partitions on a shard: takes the contributions of the nodes, sends the results,
// and follows changes of the owner and losses of nodes. The arithmetic and the order of the nodes
// are in Partition. Belongs to the shard's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/summation/job_state.h"
#include "lib/summation/node_port.h"
#include "lib/summation/partition.h"
#include "lib/summation/partition_frames.h"
#include "lib/summation/shard_context.h"

namespace addend {

class SummedPartitions {
 public:
  // The specification of the job's asynchronous partition; null if there is no such partition.
  using OtherSpecFn = std::function<const PartitionSpec*(PartitionId)>;

  // `job` and `context` outlive this object.
  SummedPartitions(JobState* job, ShardContext* context, OtherSpecFn latest)
      : job_(job),
        context_(context),
        latest_(std::move(latest)),
        frames_(job, &context->journal, &context->encoder) {}

  // ---- orders of the scheduler ----
  void Add(std::shared_ptr<Partition> partition);
  // This server becomes the owner again. The former owner has handed the partition over, or the
  // nodes have to report. No effect if the partition is not here, or the version is not newer.
  void TakeOver(PartitionId id, PlanVersion version, bool handed_over);
  // Another server is the owner from `next` on: closes the partition between two rounds.
  void HandOver(PartitionId id, PlanVersion next);
  void Drop(PartitionId id);
  void DropAll();
  // The generation has failed: no round is sealed any more.
  void Abort(PartitionId id);
  // The node takes part in no round any more. No effect if that is known.
  void Lose(PartitionId id, NodeId node);
  // The partitions that wait for nodes come last.
  std::vector<PartitionId> Ids() const;
  const PartitionSpec* SpecOf(PartitionId id) const;

  // ---- frames of a node, or of a relay ----
  absl::StatusOr<MutableBytes> Place(NodePort* node, const FrameHeader& header);
  absl::Status OnContribution(NodePort* node, const FrameHeader& header, Payload payload);
  // A kPartialSum, of another summation server: the sum of the contributions of some nodes.
  absl::StatusOr<MutableBytes> PlaceSum(NodePort* relay, const FrameHeader& header);
  absl::Status OnSum(NodePort* relay, const FrameHeader& header, Payload payload);
  // RECOVER: the last round whose result the node holds.
  absl::Status OnReport(NodePort* node, const FrameHeader& header);
  // ACK: where the node, or relay, stands after a reset of its link.
  absl::Status OnSync(NodePort* node, const FrameHeader& header);
  // RESULT: the newest result, which this server has requested.
  absl::Status OnSupplied(NodePort* node, const FrameHeader& header, Payload payload);
  // The link that was receiving into these partitions is closed.
  void OnReceiverLeft(const std::vector<std::shared_ptr<Partition>>& partitions);
  // Drops the references to the memory of the node's process.
  void ForgetReferences(NodeId node);

  // ---- memory and numbers ----
  // Drops early contributions while the job keeps more than its share.
  void TrimEarly();
  // Appends the rounds that wait for nodes, until `out` has `limit` entries.
  void RollCall(size_t limit, std::vector<OpenRoundInfo>* out);
  void AddNames(std::map<TensorId, std::string>* names) const;

 private:
  absl::StatusOr<std::shared_ptr<Partition>> Find(const FrameHeader& header) const;
  absl::StatusOr<MutableBytes> RoomFor(NodePort* node, const FrameHeader& header,
                                       Landing::Placed* placed);
  absl::Status TakeContribution(NodePort* node, Partition* partition, const FrameHeader& header,
                                Payload payload, Landing::Placed* placed);
  absl::Status TakeSum(NodePort* relay, Partition* partition, const FrameHeader& header,
                       const Payload& payload, Landing::Placed* placed);
  void NoteArrival(NodeId node, Partition* partition, const FrameHeader& header, int64_t began);
  absl::Status Sum(Partition* partition, const FrameHeader& header, Payload payload);
  absl::Status NoteSummed(Partition* partition, absl::Status status, size_t bytes);
  absl::Status Advance(Partition* partition);
  void Settle(Partition* partition);
  void SendResults(Partition* partition);
  void EndRecovery(Partition* partition);
  void Relay(Partition* partition);
  void CloseIfDue(Partition* partition);
  bool IsReceiving(const Partition& partition) const;
  void Abort(Partition* partition);
  void Lose(Partition* partition, NodeId node);
  void ReplaceHolder(Partition* partition);
  void NoteRecovery(const std::shared_ptr<Partition>& partition);

  JobState* const job_;
  ShardContext* const context_;
  const OtherSpecFn latest_;
  const PartitionFrames frames_;
  absl::flat_hash_map<PartitionId, std::shared_ptr<Partition>> partitions_;
  // The partitions that wait for nodes, and some that do not wait any more: the roll-call removes
  // those.
  absl::btree_set<PartitionId> waiting_;
};

}  // namespace addend
