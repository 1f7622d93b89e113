// A job's relayed partitions on a shard (relayed_partition.h): takes the contributions of the nodes
// of a span, and of the relay before it, sends their sums on, and passes on the owner's answers.
// Belongs to the shard's thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/link/server_link.h"
#include "lib/summation/job_state.h"
#include "lib/summation/node_port.h"
#include "lib/summation/peer_links.h"
#include "lib/summation/relayed_partition.h"
#include "lib/summation/shard_context.h"

namespace addend {

class RelayedPartitions final : public ServerEvents {
 public:
  // `job` and `context` outlive this object; `context` has an Outgoing.
  RelayedPartitions(JobState* job, ShardContext* context);

  // ---- orders of the scheduler ----
  void Add(std::shared_ptr<RelayedPartition> partition);
  // Closes the links that are receiving into the partition.
  void Drop(PartitionId id);
  void DropAll();
  bool empty() const { return partitions_.empty(); }
  // Limits the bytes of sums on their way, over all links together, to about `bytes`.
  void LimitInFlight(size_t bytes) { links_.LimitInFlight(bytes); }
  // Links to other machines are encrypted from now on.
  void Encrypt() { links_.Encrypt(); }

  // ---- frames of a node, or of the relay before ----
  // The frame is about a relayed partition, under the plan version in which it is relayed.
  bool IsAbout(const FrameHeader& header) const;
  absl::StatusOr<MutableBytes> Place(NodePort* port, const FrameHeader& header);
  // A contribution, or a sum of contributions.
  absl::Status OnContribution(NodePort* port, const FrameHeader& header, Payload payload);
  // ACK: the last round whose result the sender holds.
  absl::Status OnSync(NodePort* port, const FrameHeader& header) const;

  // Drops the references to the memory of the node's process.
  void ForgetReferences(NodeId node);
  // Drops early contributions while the job keeps more than its share.
  void TrimEarly();
  // Appends the rounds that wait for nodes, until `out` has `limit` entries.
  void RollCall(size_t limit, std::vector<OpenRoundInfo>* out) const;

  // ---- frames of the owner, or of the next relay ----
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) override;
  MutableBytes RoomForStamp(const ServerLink*, const FrameHeader&) override { return {}; }
  void OnStamp(const ServerLink*, const FrameHeader&, Bytes) override {}
  absl::Status OnResult(const ServerLink* link, const FrameHeader& header,
                        const EncodedBytes& result) override;
  void OnSendAgain(const ServerLink* link, const FrameHeader& header) override;
  void OnMoved(const ServerLink* link, const FrameHeader& header) override;
  void OnRecovered(const ServerLink*, const FrameHeader&) override {}
  void OnAborted(const ServerLink* link, const FrameHeader& header) override;
  void OnLinkOpen(ServerLink* link, Incarnation server) override;
  void OnLinkLost(ServerLink* link, const absl::Status& why) override;

 private:
  using Shared = std::shared_ptr<RelayedPartition>;

  static absl::Status CheckSender(const NodePort& port, const FrameHeader& header,
                                  const RelayedPartition& partition);
  // Null if the partition is not relayed here, or not over this link.
  Shared FindFor(const ServerLink* link, const FrameHeader& header) const;
  absl::Status Take(NodePort* port, const Shared& partition, const FrameHeader& header,
                    Payload payload, Landing::Placed* placed);
  absl::Status TakeInTurn(const Shared& partition, const FrameHeader& header, Payload payload);
  void CountSummed(const Shared& partition, uint64_t contributions);
  void Keep(const Shared& partition, const FrameHeader& header, Payload payload,
            std::unique_ptr<EarlyContribution> early);
  absl::Status Advance(const Shared& partition);
  void SendSum(const Shared& partition);
  void Sync(const RelayedPartition& partition);
  void Request(NodeId local, const Shared& partition);
  void SendResult(NodePort* port, const Shared& partition) const;
  // What ends this server's part, if the round of a contribution is concerned.
  bool TellEnd(NodePort* port, Round round, const RelayedPartition& partition) const;
  FrameHeader HeaderFor(FrameType type, const RelayedPartition& partition) const {
    return job_->HeaderFor(type, partition.spec(), partition.spec().version);
  }
  // To the owner, or to the next relay.
  FrameHeader HeaderForOwner(FrameType type, const RelayedPartition& partition) const;
  // Calls `visit` with every connected sender to the partition.
  template <typename Visit>
  void ForEachPort(const RelayedPartition& partition, const Visit& visit) const;

  JobState* const job_;
  ShardContext* const context_;
  PeerLinks links_;
  absl::flat_hash_map<PartitionId, Shared> partitions_;
};

}  // namespace addend
