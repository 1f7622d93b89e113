// The orders of the scheduler to a summation server: the jobs and the tensors that it holds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/participants.h"
#include "lib/base/sum_tree.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/summation/relayed_span.h"

namespace addend {

// Another summation server of a job, with which this server exchanges sums.
struct Peer {
  Incarnation incarnation;
  std::string host;
  uint16_t port = 0;
  uint16_t frame_version = 0;  // the newest that both speak
  std::string name;            // for people: "summation server 2 (gpu7)"
};

struct JobSpec {
  JobId id;
  std::string name = {};  // for people
  Generation generation;
  PlanVersion plan_version;
  std::string key;  // from which its nodes' tokens are made (lib/auth/token.h)
  uint32_t num_nodes = 1;
  uint32_t local_size = 1;     // ranks of a node
  std::set<NodeId> lost = {};  // nodes that take part in no round any more
  bool failed = false;         // the generation has failed: no round is sealed any more
  std::map<ServerId, Peer> peers = {};

  uint64_t ranks() const { return uint64_t{num_nodes} * local_size; }
};

struct TensorSpec {
  TensorId id;
  std::string name;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  WireFormat wire = {};                                        // of contributions and results
  std::shared_ptr<const Participants> participants = nullptr;  // null: all ranks
  uint64_t elements = 0;                                       // of the whole tensor
  uint64_t partition_elements = 1;                             // of every partition but the last
  std::vector<uint32_t> partitions;   // the indices of the partitions that this server owns
  std::vector<uint32_t> shards;       // the shard of each
  std::vector<PlanVersion> versions;  // of each; 0: this server is its first owner
  std::vector<bool> handed_over;      // of each: the former owner lives, and closes between rounds
  // Of each, or empty: the spans of nodes whose contributions come as sums.
  std::vector<std::shared_ptr<const std::vector<RelayedSpan>>> relayed = {};

  uint64_t FirstElement(uint32_t partition) const { return partition * partition_elements; }
  uint64_t ElementsOf(uint32_t partition) const {
    return std::min(partition_elements, elements - FirstElement(partition));
  }
};

// The tensors have the same name, size, type, operation and ranks, whatever their partitions.
bool IsSameTensor(const TensorSpec& a, const TensorSpec& b);
TensorSpec WithoutPartitions(TensorSpec tensor);

// A partition of an engine, for its memory and for the limits of bytes on their way.
struct HeldPartition {
  uint64_t bytes = 0;  // reserved
  uint64_t payload = 0;
  uint32_t shard = 0;
  uint32_t receivers = 0;  // of its results
};
using HeldPartitions = std::map<uint32_t, HeldPartition>;

// How this server relays a partition: it sums the contributions of a span of nodes, and sends the
// sum to the owner, or to the next relay, from which it gets the result.
struct RelayOrder {
  SumSpan span;             // of the sum
  uint32_t first_node = 0;  // the nodes of the span before it come as a sum, of `before`
  ServerId before = {};     // 0: all nodes of the span send their contributions here
  ServerId to = {};
  uint32_t to_shard = 0;
};

// The result slots of an agent, in which its colocated server leaves the results: slot[r & 1] of
// the whole tensor for round r.
struct ExternalSlots {
  MutableBytes slot[2];
  std::atomic<uint64_t>* reads = nullptr;  // as Segment::reads()
  std::shared_ptr<void> keep_alive;
};
using ExternalSlotsFn =
    std::function<std::optional<ExternalSlots>(JobId, Generation, const std::string& tensor_name)>;

// A round that waits for nodes, for the roll-call. `pushed` and `missing` are the nodes that have
// and have not contributed. While the partition recovers, they are the nodes that have and have not
// reported; while it lacks the newest result, the node from which that is requested is missing.
struct OpenRoundInfo {
  JobId job;
  TensorId tensor;
  std::string name;
  uint32_t partition = 0;
  std::string_view state;  // as in summation.proto
  Round round;
  std::vector<NodeId> pushed;
  std::vector<NodeId> missing;
  double open_s = 0;
};

}  // namespace addend
