// A declared tensor on this node: its memory, its rounds, and where its partitions are summed.
// Belongs to the agent's core thread.
//
// Memory, for a tensor of M bytes and L local ranks: a contribution segment for each rank (L M),
// two result slots (2 M), and for L > 1 the node's sum (M): 3 M with one rank, (L + 3) M with more.
// Pages that are never touched cost nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/types.h"
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

  bool operator==(const TensorShape&) const = default;
  uint64_t elements() const;
  // "float32 [3,4] average".
  std::string ToString() const;
};

// Who sums a partition, as this node knows it.
struct PartitionOwner {
  ServerLink* link = nullptr;
  PlanVersion version;  // the plan that made it so; 0: the first
  // This node has told the new owner what it holds, and waits to hear which round comes next: until
  // then it sends it no contribution. (REPORTED in spec/recovery.pml.)
  bool reported = false;
  // The owner to be, announced by the scheduler; this node follows it when the present one says
  // that it has handed over. Null: none.
  ServerLink* next = nullptr;
  PlanVersion next_version;
};

// When the local ranks pushed the running round, as TraceNow(). A call begins before its push by
// the time that copying in takes.
struct PushTimes {
  int64_t first_call = 0;
  int64_t last_call = 0;  // of the rank that pushed last
  int64_t last_push = 0;
  uint32_t last_rank = 0;  // the local rank
};

// A partition's way in the running round, as TraceNow(); 0: not yet.
struct PartitionTimes {
  int64_t ready = 0;      // the node's contribution is there
  int64_t first_out = 0;  // handed to the link
  int64_t last_out = 0;   // sent
  int64_t first_in = 0;   // the result begins to come
  int64_t last_in = 0;    // it is there
};

// What is in the copy of a partition's latest value that this node holds, and in the one that is to
// come: the server's words, which it gets back when it asks (lib/wire/stamp.h). Empty: no copy yet.
struct CopyStamps {
  std::vector<std::byte> held;
  std::vector<std::byte> coming;

  void Take() { held.swap(coming); }
};

class Tensor {
 public:
  // Makes the segments. RESOURCE_EXHAUSTED when there is no memory for them.
  static absl::StatusOr<std::shared_ptr<Tensor>> Create(uint32_t number, TensorShape shape,
                                                        uint32_t local_ranks);

  const uint32_t number;  // in the trainers' protocol
  const TensorShape shape;
  const size_t bytes;
  TensorRounds rounds;

  // ---- which local ranks use it ----
  enum class Use : uint8_t { kNever, kAttached, kReleased };
  std::vector<Use> uses;  // by local rank
  bool AllReleased() const;
  bool AllAttachedOnce() const;
  bool declared_to_scheduler = false;

  // ---- memory ----
  std::vector<std::shared_ptr<Segment>> contributions;  // by local rank
  std::shared_ptr<Segment> results;
  MutableBytes ResultSlot(Round round) const;

  // ---- the plan ----
  bool planned() const { return partition_elements != 0; }
  TensorId id;
  uint64_t partition_elements = 0;
  std::vector<PartitionOwner> owners;  // by partition
  uint32_t partitions() const { return static_cast<uint32_t>(owners.size()); }
  size_t OffsetOf(uint32_t partition) const {
    return partition * partition_elements * SizeOf(shape.dtype);
  }
  size_t BytesOf(uint32_t partition) const;
  // Rounds are this node's alone, and each result is a copy of the owner's latest value.
  bool asynchronous() const { return shape.op == ReduceOp::kAccumulate; }
  std::vector<CopyStamps> stamps;  // by partition; only then
  // For each partition a byte of the tensor, from 1 on, such that those of every link are spread
  // evenly over it.
  std::vector<uint64_t> PlacesSideBySide() const;

  // ---- ranks that push from a GPU, in the running round ----
  struct DevicePush {
    bool used = false;
    uint32_t lead = 0;    // the rank to whose segment this one's group writes
    uint64_t staged = 0;  // bytes of the contribution, from its start, to which this rank has done
                          // its part
  };
  std::vector<DevicePush> device;  // by local rank
  // How much of the ranks' contributions is in host memory, from the start.
  uint64_t StagedBytes() const;
  // ---- a contribution that a NIC reads from the GPU ----
  std::shared_ptr<DeviceRange> direct_range;  // null: there is none
  bool direct = false;                        // the running round's is there
  std::vector<bool> on_host;                  // by partition: its copy is in host memory too
  bool IsOnHost(uint32_t partition) const { return !direct || on_host[partition]; }

  // The segments that hold the running round's contributions, in the order of summation.
  std::vector<uint32_t> SegmentsWithData() const;

  // ---- the running round ----
  int32_t priority = 0;
  absl::Time open_since = absl::InfiniteFuture();  // of the first push
  int warnings = 0;                                // about a stall, so far
  // What the node contributes to the running round: decided by PrepareContribution.
  bool contribution_is_empty = false;
  bool must_reduce =
      false;  // the ranks' contributions have to be summed first, partition by partition
  // FAILED_PRECONDITION: two local ranks gave data for a broadcast.
  absl::Status PrepareContribution();
  void ReduceInNodeOf(uint32_t partition);
  // Where it can be read: in direct_range unless IsOnHost.
  Bytes Contribution(uint32_t partition) const;

  bool aborted = false;  // the running round: the generation fails, and the owners have said so

  PushTimes pushes;
  std::vector<PartitionTimes> way;  // by partition
  void NotePush(uint32_t local_rank, int64_t called, int64_t pushed);

  absl::Status error;       // of this tensor alone; every push gets it
  uint32_t error_code = 0;  // addend_code

 private:
  Tensor(uint32_t number_in, TensorShape shape_in, uint32_t local_ranks);
  const std::byte* source_ = nullptr;  // start of the node's contribution
  std::vector<uint32_t> segments_;     // that are summed
  std::shared_ptr<Arena> node_sum_;    // only with several local ranks
};

}  // namespace addend
