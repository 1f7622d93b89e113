// A declared tensor on this node: its memory, its rounds, and the owners of its partitions. Belongs
// to the agent's core thread.
//
// Memory, for a tensor of M bytes and L local ranks: a contribution segment for each rank (L M),
// two result slots (2 M), and for L > 1, or a lossy type on the wire, the node's sum (M): 3 M with
// one rank, (L + 3) M with more.
// Pages that are never touched cost nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/participants.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/memory/arena.h"
#include "lib/memory/device_range.h"
#include "lib/memory/segment.h"
#include "services/worker_agent/tensor_rounds.h"

namespace addend {

class ServerLink;

struct TensorShape {
  std::string name;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> dims;
  WireFormat wire = {};       // float32 sums and averages only
  Participants participants;  // the ranks that take part in it

  bool operator==(const TensorShape&) const = default;
  uint64_t elements() const;
  // "float32 [3,4] average", "float32 [3,4] average (wire int8) of ranks 0, 2".
  std::string ToString() const;
};

// The server that sums a partition, as this node knows it.
struct PartitionOwner {
  ServerLink* link = nullptr;
  PlanVersion version;  // the plan that named this owner; 0: the first plan
  // This node has reported its newest result to a new owner, and waits to hear which round comes
  // next: until then it sends the owner no contribution. (REPORTED in spec/recovery.pml.)
  bool reported = false;
  // The next owner, announced by the scheduler; this node follows it when the present owner says
  // that it has handed over. Null: no move is planned.
  ServerLink* next = nullptr;
  PlanVersion next_version;
};

// This node's push of a partition in the running round.
struct PushedPartition {
  bool awaits_result = false;
  // A result of an asynchronous tensor is in its slot, and the contribution is still being copied.
  // Meanwhile no other result is taken: it may be of a later value.
  bool result_waits = false;
  int32_t priority = 0;
  uint64_t place = 0;                 // in the convoy of this node's contributions
  PayloadEncoder::History encodings;  // of all rounds
};

// The times of the local ranks' pushes in the running round, as TraceNow(). A call begins before
// its push by the time that copying in takes.
struct PushTimes {
  int64_t first_call = 0;
  int64_t last_call = 0;  // of the rank that pushed last
  int64_t last_push = 0;
  uint32_t last_rank = 0;  // local rank of the last push
};

// A partition's times in the running round, as TraceNow(); 0: not yet.
struct PartitionTimes {
  int64_t ready = 0;      // the node's contribution can be sent
  int64_t first_out = 0;  // handed to the link
  int64_t last_out = 0;   // sent
  int64_t first_in = 0;   // the result begins to arrive
  int64_t last_in = 0;    // the result is complete
};

// The stamps (lib/wire/stamp.h) of the copy of a partition's latest value that this node holds, and
// of the copy that is on its way. The server that wrote them gets them back when it asks. Empty: no
// copy yet.
struct CopyStamps {
  std::vector<std::byte> held;
  std::vector<std::byte> coming;

  void Take() { held.swap(coming); }
};

// The part of a contribution that local ranks push from GPUs, in the running round.
struct DevicePart {
  struct Push {
    bool used = false;
    uint32_t lead = 0;    // the rank to whose segment the pushing rank's group writes
    uint64_t staged = 0;  // bytes, from the start, to which this rank has done its part
  };
  std::vector<Push> pushes;            // by local rank
  std::shared_ptr<DeviceRange> range;  // memory of a GPU that a NIC reads; null: not offered
  bool direct = false;                 // the running round's contribution is in `range`
  std::vector<bool> on_host;           // by partition: a copy is in host memory too
};

class NodeTensor {
 public:
  // Makes the segments. RESOURCE_EXHAUSTED when there is no memory for them. `taking_part`: by
  // local rank, at least one. `node`: this node, whose number stochastic rounding depends on.
  static absl::StatusOr<std::shared_ptr<NodeTensor>> Create(uint32_t number, TensorShape shape,
                                                            const std::vector<bool>& taking_part,
                                                            NodeId node = NodeId());

  const uint32_t number;  // in the trainers' protocol
  const TensorShape shape;
  const size_t bytes;
  TensorRounds rounds;

  // ---- the local ranks' use of it ----
  enum class Use : uint8_t { kNever, kAttached, kReleased, kOutside };
  std::vector<Use> uses;  // by local rank
  bool AllReleased() const;

  // ---- the agreement with the other nodes ----
  struct {
    bool declared = false;                 // to the scheduler
    std::optional<TensorShape> differing;  // what another local rank has declared it as
    bool refused = false;                  // by the scheduler
  } agreement;

  // ---- memory ----
  std::vector<std::shared_ptr<Segment>> contributions;  // by local rank; null: it takes no part
  std::shared_ptr<Segment> results;
  MutableBytes ResultSlot(Round round) const;
  // The partition's part of the round's slot.
  MutableBytes ResultOf(uint32_t partition, Round round) const;

  // ---- the plan ----
  bool planned() const { return partition_elements != 0; }
  TensorId id;
  uint64_t partition_elements = 0;
  std::vector<PartitionOwner> owners;  // by partition
  // Becomes planned, with room for the owners of `partitions`.
  void SetPlan(TensorId tensor, uint64_t elements_per_partition,
               std::vector<PartitionOwner> first_owners);
  uint32_t partitions() const { return static_cast<uint32_t>(owners.size()); }
  size_t OffsetOf(uint32_t partition) const {
    return partition * partition_elements * SizeOf(shape.dtype);
  }
  size_t BytesOf(uint32_t partition) const;
  // Each node's rounds are independent, and each result is a copy of the owner's latest value.
  bool asynchronous() const { return shape.op == ReduceOp::kAccumulate; }
  std::vector<CopyStamps> stamps;  // by partition; asynchronous tensors only
  // For each partition a byte of the tensor, from 1 on, such that the partitions of each link are
  // spread evenly over the tensor. Links of equal load take turns, which begin with another link on
  // each node: all nodes at a time would fill the port of a single server.
  std::vector<uint64_t> PlacesSideBySide(NodeId node) const;

  // ---- ranks that push from a GPU ----
  DevicePart device;
  // The bytes of the ranks' contributions, from the start, that are in host memory.
  uint64_t StagedBytes() const;
  bool IsOnHost(uint32_t partition) const { return !device.direct || device.on_host[partition]; }
  // The segments that hold the running round's contributions, in the order of summation.
  std::vector<uint32_t> SegmentsWithData() const;

  // ---- the running round ----
  int32_t priority = 0;
  struct {
    absl::Time since = absl::InfiniteFuture();  // of the first push
    int warnings = 0;                           // stall warnings logged so far
    bool aborted = false;                       // by the owners, since the generation fails
  } open;
  // A local rank has pushed the running round.
  bool IsOpen() const { return open.since != absl::InfiniteFuture(); }
  // Decided by PrepareContribution: the node has no data; or it sums several ranks' data, or rounds
  // it.
  bool contribution_is_empty = false;
  bool must_reduce = false;
  // FAILED_PRECONDITION: two local ranks gave data for a broadcast.
  absl::Status PrepareContribution();
  void ReduceInNodeOf(uint32_t partition);
  // Where it can be read: in device.range unless IsOnHost.
  Bytes Contribution(uint32_t partition) const;
  std::vector<PushedPartition> pushed;  // by partition
  // Opens the next round.
  void EndRound();

  PushTimes pushes;
  std::vector<PartitionTimes> times;  // by partition
  void NotePush(uint32_t local_rank, int64_t called, int64_t now);

  absl::Status error;       // of this tensor alone; every push gets it
  uint32_t error_code = 0;  // addend_code

 private:
  NodeTensor(uint32_t number_in, TensorShape shape_in, const std::vector<bool>& taking_part,
             NodeId node);
  const std::byte* source_ = nullptr;  // start of the node's contribution
  std::vector<uint32_t> segments_;     // the inputs of the node's sum
  // Only with several local ranks, or with rounding.
  struct {
    NodeId node;
    std::shared_ptr<Arena> memory;
  } node_sum_;
};

// Sorts the longest open round first.
inline bool IsOpenLonger(const NodeTensor* a, const NodeTensor* b) {
  return a->open.since < b->open.since;
}

}  // namespace addend
