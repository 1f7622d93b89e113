// A job as the objects of a shard share it: its specification, memory and totals, and the nodes
// that are connected. Owned by the JobShard. Belongs to the shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "lib/base/ids.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/summation/job_memory.h"
#include "lib/summation/partition_spec.h"
#include "lib/summation/server_identity.h"
#include "lib/summation/shard_journal.h"
#include "lib/summation/specs.h"
#include "lib/wire/frame.h"

namespace addend {

class NodePort;

// The ports of the connected nodes. Memory grows with the nodes that have linked, not with the size
// that the job claims.
class JobNodes {
 public:
  // Null if the node is not connected.
  NodePort* Find(NodeId node) const {
    const auto found = ports_.find(node.value());
    return found == ports_.end() ? nullptr : found->second;
  }
  void Set(NodeId node, NodePort* port) { ports_[node.value()] = port; }
  void Erase(NodeId node) { ports_.erase(node.value()); }
  // Pairs of node and port, by ascending node.
  auto begin() const { return ports_.begin(); }
  auto end() const { return ports_.end(); }
  // Calls `visit` with each node and its port, from node `first` on, and then from the start.
  template <typename Visit>
  void ForEachFrom(uint32_t first, const Visit& visit) const {
    const auto middle = ports_.lower_bound(first);
    for (auto it = middle; it != ports_.end(); ++it) visit(NodeId(it->first), it->second);
    for (auto it = ports_.begin(); it != middle; ++it) visit(NodeId(it->first), it->second);
  }

 private:
  std::map<uint32_t, NodePort*> ports_;
};

struct JobState {
  const ServerIdentity* server = nullptr;  // outlives the job
  JobSpec spec;
  std::shared_ptr<JobMemory> memory;
  JobTotals totals;
  JobNodes nodes;
  size_t partitions = 0;  // on this shard, of both kinds

  // The node that this server sends results to first: not the first of all servers, whose results
  // would meet in the port of that node's switch.
  uint32_t FirstServed() const {
    return server->id.load(std::memory_order_relaxed) % spec.num_nodes;
  }
  // Calls `visit` with each connected node of the partition's participants, and its port.
  template <typename Visit>
  void ForEachNodeOf(const PartitionSpec& partition, const Visit& visit) const {
    for (const auto& [id, node] : nodes) {
      if (!IsRelay(NodeId(id)) && partition.HasNode(NodeId(id))) visit(NodeId(id), node);
    }
  }

  // The header of a frame about a partition, to one of the job's nodes. `version`: the plan version
  // that made this server the owner.
  FrameHeader HeaderFor(FrameType type, const PartitionSpec& partition, PlanVersion version) const {
    FrameHeader header;
    header.type = type;
    header.dtype = partition.dtype;
    header.op = partition.op;
    header.job = spec.id;
    header.generation = spec.generation;
    header.plan_version = version;
    header.partition = partition.id;
    server->Sign(&header);
    return header;
  }
};

// INVALID_ARGUMENT: the sender has no rank that takes part in the tensor; or type, operation or
// size of a contribution or result differ from the partition's.
absl::Status CheckFit(const FrameHeader& header, const PartitionSpec& spec);
// The same for a kPartialSum.
absl::Status CheckSumFits(const FrameHeader& header, const PartitionSpec& spec);
// INVALID_ARGUMENT: the payload is no encoding of the partition's elements. Before it is decoded.
absl::Status CheckContent(const FrameHeader& header, const EncodedBytes& payload,
                          const PartitionSpec& spec);

}  // namespace addend
