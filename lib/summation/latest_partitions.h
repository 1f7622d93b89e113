// A job's asynchronous partitions on a shard: adds every update when it arrives, and answers the
// node with the latest value. After a change of the owner the most recent copy that a node holds
// becomes the value. The arithmetic is in LatestPartition. Belongs to the shard's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/summation/job_state.h"
#include "lib/summation/latest_partition.h"
#include "lib/summation/node_port.h"
#include "lib/summation/partition_frames.h"
#include "lib/summation/shard_context.h"

namespace addend {

class LatestPartitions {
 public:
  // The specification of the job's summed partition; null if there is no such partition.
  using OtherSpecFn = std::function<const PartitionSpec*(PartitionId)>;

  // `job` and `context` outlive this object.
  LatestPartitions(JobState* job, ShardContext* context, OtherSpecFn summed)
      : job_(job),
        context_(context),
        summed_(std::move(summed)),
        frames_(job, &context->journal, &context->encoder) {}

  // ---- orders of the scheduler ----
  void Add(std::shared_ptr<LatestPartition> partition);
  // This server becomes the owner again: the nodes report. No effect if the partition is not here,
  // or the version is not newer.
  void TakeOver(PartitionId id, PlanVersion version);
  // Another server is the owner from `next` on: closes the partition between two updates.
  void HandOver(PartitionId id, PlanVersion next);
  void Drop(PartitionId id);
  void DropAll();
  // The generation has failed: no update is added any more.
  void Abort(PartitionId id);
  // The node contributes no update any more. No effect if that is known.
  void Lose(PartitionId id, NodeId node);
  std::vector<PartitionId> Ids() const;
  const PartitionSpec* SpecOf(PartitionId id) const;

  // ---- frames of a node ----
  absl::StatusOr<MutableBytes> Place(NodePort* node, const FrameHeader& header);
  absl::Status OnFrame(NodePort* node, const FrameHeader& header, Payload payload);

  // ---- memory and numbers ----
  // Drops the copies above the reserved copies that are not lent.
  void TrimCopies();
  // Appends the partitions that wait for nodes, until `out` has `limit` entries.
  void RollCall(size_t limit, std::vector<OpenRoundInfo>* out) const;

 private:
  absl::StatusOr<std::shared_ptr<LatestPartition>> Find(const FrameHeader& header) const;
  absl::Status OnUpdate(NodePort* node, LatestPartition* partition, const FrameHeader& header,
                        const EncodedBytes& update);
  absl::Status Apply(NodePort* node, LatestPartition* partition, const FrameHeader& header,
                     const EncodedBytes& update);
  absl::Status OnReport(NodePort* node, LatestPartition* partition, const FrameHeader& header,
                        Bytes stamp);
  void OnSync(NodePort* node, LatestPartition* partition, const FrameHeader& header);
  absl::Status OnCopy(NodePort* node, LatestPartition* partition, const FrameHeader& header,
                      const EncodedBytes& copy, std::shared_ptr<Arena>* own);
  absl::Status SendLatest(NodePort* node, LatestPartition* partition, int32_t priority);
  void OnCopySent(PartitionId id);
  void DropFurtherCopies(LatestPartition* partition);
  void RequestPostponed(LatestPartition* partition);
  void Restore(LatestPartition* partition);
  void Open(LatestPartition* partition);
  void NoteRestored(const LatestPartition& restored);
  void CloseIfDue(LatestPartition* partition);
  OpenRoundInfo Describe(const LatestPartition& partition) const;

  JobState* const job_;
  ShardContext* const context_;
  const OtherSpecFn summed_;
  const PartitionFrames frames_;
  absl::flat_hash_map<PartitionId, std::shared_ptr<LatestPartition>> partitions_;
  absl::btree_set<PartitionId> waiting_;  // not restored yet
  absl::btree_set<PartitionId> copied_;   // with more copies than are reserved
  // Restored since the last log line, and the updates that are lost with them.
  size_t restored_ = 0;
  uint64_t lost_updates_ = 0;
  // The Dones of answers outlive this object.
  const std::shared_ptr<LatestPartitions*> self_ = std::make_shared<LatestPartitions*>(this);
};

}  // namespace addend
