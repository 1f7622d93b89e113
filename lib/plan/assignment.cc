// Implements the balanced assignment: tensor by tensor, each one's partitions in order of size,
// onto the server with the largest deficit, which a heap finds. See assignment.h for the
// guarantees.

#include "lib/plan/assignment.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/sum_tree.h"

namespace addend {
namespace {

constexpr uint64_t kMaxIndices = std::numeric_limits<uint32_t>::max();

// The partitions of a tensor that have equal size: indices [first, first + count).
struct Group {
  size_t tensor;
  uint64_t first;
  uint64_t count;
  uint64_t bytes;         // payload of each partition
  uint64_t memory_bytes;  // accumulators and table of each partition
};

// A server in the heap; the server furthest below its share is on top.
struct Candidate {
  double deficit_bytes;
  uint32_t server;
  bool operator<(const Candidate& other) const {
    if (deficit_bytes != other.deficit_bytes) return deficit_bytes < other.deficit_bytes;
    return server > other.server;
  }
};

absl::Status Validate(std::span<const TensorSize> tensors, const PartitionSize& partition_size,
                      std::span<const ServerLoad> servers) {
  if (partition_size.least() == 0) {
    return absl::InvalidArgumentError("The partition size must be at least 1 byte, not 0.");
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSize& t = tensors[i];
    const uint64_t partition_elements = PartitionElements(t, partition_size);
    if (t.elements > kMaxElements || PartitionCount(t.elements, partition_elements) > kMaxIndices) {
      return absl::InvalidArgumentError(
          absl::StrFormat("A tensor of %d %s elements is too large for partitions of %d bytes: "
                          "raise --partition-bytes or split the tensor.",
                          t.elements, Name(t.dtype), partition_elements * SizeOf(t.dtype)));
    }
  }
  double shares = 0;
  for (const ServerLoad& s : servers) {
    if (!(s.share >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("A server's share must not be negative, but it is %g.", s.share));
    }
    if (s.shard_loads.empty()) {
      return absl::InvalidArgumentError("A server must have at least one shard.");
    }
    shares += s.share;
  }
  if (!(shares > 0)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("The shares of the %d summation servers are all 0: start a server, or let "
                        "the agents run theirs (--colocated-summation=true).",
                        servers.size()));
  }
  return absl::OkStatus();
}

// Appends the groups of tensor number `index`, the larger partitions first.
void AddGroupsOf(std::span<const TensorSize> tensors, size_t index,
                 const TensorAssignment& assignment, std::vector<Group>* groups) {
  const auto [elements, dtype, table, accumulators] = tensors[index];
  const uint64_t per_partition = assignment.partition_elements;
  const uint64_t full = elements / per_partition;
  const uint64_t tail = elements % per_partition;
  if (full > 0) {
    groups->push_back({index, 0, full, per_partition * SizeOf(dtype),
                       AccumulatorBytes(dtype, per_partition, accumulators) + table});
  }
  if (tail > 0) {
    groups->push_back({index, full, 1, tail * SizeOf(dtype),
                       AccumulatorBytes(dtype, tail, accumulators) + table});
  }
}

// By how many bytes each server is below its share of all bytes, the new partitions included.
std::vector<Candidate> Deficits(std::span<const Group> groups,
                                std::span<const ServerLoad> servers) {
  uint64_t total = 0;
  double shares = 0;
  for (const Group& g : groups) total += g.bytes * g.count;
  for (const ServerLoad& s : servers) {
    total += s.load_bytes;
    shares += s.share;
  }
  std::vector<Candidate> heap;
  for (size_t i = 0; i < servers.size(); ++i) {
    const double target = static_cast<double>(total) * (servers[i].share / shares);
    heap.push_back({target - static_cast<double>(servers[i].load_bytes), static_cast<uint32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end());
  return heap;
}

class Balancer {
 public:
  Balancer(std::vector<Candidate> heap, std::vector<ServerLoad>* servers)
      : heap_(std::move(heap)), servers_(*servers), taken_(servers->size(), 0) {}

  // Owners of the group's partitions, spread evenly along the tensor.
  absl::StatusOr<std::vector<uint32_t>> Owners(const Group& group) {
    std::vector<Candidate> full;  // servers without memory for a partition of this size
    std::vector<uint32_t> used;
    absl::Status status;
    for (uint64_t i = 0; i < group.count && status.ok(); ++i) {
      status = TakeOne(group, &used, &full);
    }
    for (const Candidate& c : full) Push(c);
    if (!status.ok()) return status;
    return Interleave(group.count, std::move(used));
  }

 private:
  absl::Status TakeOne(const Group& group, std::vector<uint32_t>* used,
                       std::vector<Candidate>* full) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      Candidate& top = heap_.back();
      ServerLoad& server = servers_[top.server];
      if (server.free_bytes < group.memory_bytes) {
        full->push_back(top);
        heap_.pop_back();
        continue;
      }
      if (server.free_bytes != ServerLoad::kUnlimited) {
        server.free_bytes -= group.memory_bytes;
      }
      server.load_bytes += group.bytes;
      if (taken_[top.server]++ == 0) used->push_back(top.server);
      top.deficit_bytes -= static_cast<double>(group.bytes);
      std::push_heap(heap_.begin(), heap_.end());
      return absl::OkStatus();
    }
    uint64_t most = 0;
    for (const Candidate& c : *full) most = std::max(most, servers_[c.server].free_bytes);
    return absl::ResourceExhaustedError(absl::StrFormat(
        "A partition needs %d bytes of memory, but each of the %d summation servers has at most %d "
        "bytes free: raise their --memory-limit or add servers.",
        group.memory_bytes, servers_.size(), most));
  }

  void Push(const Candidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end());
  }

  // Puts the j-th of a server's c partitions at (j + 1/2) / c of the tensor's length, so that every
  // link has work from the start.
  std::vector<uint32_t> Interleave(uint64_t count, std::vector<uint32_t> used) {
    std::sort(used.begin(), used.end());
    std::vector<std::pair<double, uint32_t>> places;
    places.reserve(count);
    for (const uint32_t server : used) {
      const uint64_t c = std::exchange(taken_[server], 0);
      for (uint64_t j = 0; j < c; ++j) {
        places.emplace_back((static_cast<double>(j) + 0.5) / static_cast<double>(c), server);
      }
    }
    std::sort(places.begin(), places.end());
    std::vector<uint32_t> owners;
    owners.reserve(count);
    for (const auto& place : places) owners.push_back(place.second);
    return owners;
  }

  std::vector<Candidate> heap_;
  std::vector<ServerLoad>& servers_;
  std::vector<uint64_t> taken_;  // by server, partitions of the current group; all 0 between groups
};

uint32_t TakeShard(uint64_t bytes, ServerLoad* server) {
  const auto least = std::min_element(server->shard_loads.begin(), server->shard_loads.end());
  *least += bytes;
  return static_cast<uint32_t>(least - server->shard_loads.begin());
}

// Calls f(server, shard, payload bytes, memory bytes) for every partition.
template <typename F>
void ForEachPartition(const TensorSize& tensor, const TensorAssignment& a,
                      std::vector<ServerLoad>* servers, F f) {
  for (size_t i = 0; i < a.servers.size(); ++i) {
    const uint64_t elements = ElementsOfPartition(tensor.elements, a.partition_elements, i);
    ServerLoad& server = (*servers)[a.servers[i]];
    f(server, server.shard_loads[a.shards[i]], elements * SizeOf(tensor.dtype),
      AccumulatorBytes(tensor.dtype, elements, tensor.accumulators) + tensor.table_bytes);
  }
}

// Assigns the tensors [begin, end) together, the largest partitions first.
absl::Status AssignSome(std::span<const TensorSize> tensors, size_t begin, size_t end,
                        std::vector<TensorAssignment>* assignments,
                        std::vector<ServerLoad>* loads) {
  std::vector<Group> groups;
  for (size_t i = begin; i < end; ++i) AddGroupsOf(tensors, i, (*assignments)[i], &groups);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.bytes > b.bytes; });
  Balancer balancer(Deficits(groups, *loads), loads);
  for (const Group& group : groups) {
    ADDEND_ASSIGN_OR_RETURN(const std::vector<uint32_t> owners, balancer.Owners(group));
    TensorAssignment& a = (*assignments)[group.tensor];
    for (uint64_t j = 0; j < group.count; ++j) {
      a.servers[group.first + j] = owners[j];
      a.shards[group.first + j] = TakeShard(group.bytes, &(*loads)[owners[j]]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

PartitionSize PartitionSize::Auto(double slowest_bps, size_t servers) {
  constexpr double kLeast = 16 << 10, kUsual = 128 << 10, kMost = 512 << 10;
  constexpr double kSlowBps = 2e9, kSlowSeconds = 6e-3, kSeconds = 11e-3, kLargeSeconds = 1e-3;
  constexpr uint64_t kPerServer = 24;
  const double count = static_cast<double>(std::max<size_t>(servers, 1));
  const double bytes_per_second = slowest_bps > 0 ? slowest_bps / 8 / count : 1e18;
  const auto power = [](double bytes) { return std::bit_floor(static_cast<uint64_t>(bytes)); };
  const double seconds = slowest_bps < kSlowBps ? kSlowSeconds : kSeconds;
  PartitionSize size(power(std::clamp(bytes_per_second * seconds, kLeast, kUsual)));
  size.most_ =
      power(std::clamp(bytes_per_second * kLargeSeconds, static_cast<double>(size.least_), kMost));
  size.per_tensor_ = kPerServer * std::max<size_t>(servers, 1);
  return size;
}

uint64_t PartitionSize::ForTensor(uint64_t tensor_bytes) const {
  return std::clamp(std::bit_floor(tensor_bytes / per_tensor_), least_, most_);
}

uint64_t PartitionElements(DType dtype, uint64_t partition_bytes) {
  const uint64_t elements = partition_bytes / SizeOf(dtype);
  if (elements >= 64) return elements / 64 * 64;
  return std::max<uint64_t>(elements, 1);
}

uint64_t PartitionElements(const TensorSize& tensor, const PartitionSize& partition_size) {
  const uint64_t bytes = tensor.elements * SizeOf(tensor.dtype);
  return PartitionElements(tensor.dtype, partition_size.ForTensor(bytes));
}

uint64_t PartitionCount(uint64_t elements, uint64_t partition_elements) {
  return elements / partition_elements + (elements % partition_elements != 0 ? 1 : 0);
}

uint64_t ElementsOfPartition(uint64_t elements, uint64_t partition_elements, uint64_t index) {
  return std::min(partition_elements, elements - index * partition_elements);
}

uint32_t SumAccumulators(uint32_t nodes) { return 1 + SumLevels(nodes); }

uint64_t AccumulatorBytes(DType dtype, uint64_t elements, uint32_t accumulators) {
  return accumulators * elements * AccumulatorSizeOf(dtype);
}

absl::StatusOr<std::vector<TensorAssignment>> Assign(std::span<const TensorSize> tensors,
                                                     const PartitionSize& partition_size,
                                                     std::vector<ServerLoad>* servers) {
  ADDEND_RETURN_IF_ERROR(Validate(tensors, partition_size, *servers));
  std::vector<TensorAssignment> assignments(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorAssignment& a = assignments[i];
    a.partition_elements = PartitionElements(tensors[i], partition_size);
    const uint64_t count = PartitionCount(tensors[i].elements, a.partition_elements);
    a.servers.resize(count);
    a.shards.resize(count);
  }
  // Partitions that are tensors of their own have new owners after a loss: together they fit best.
  const bool divided = std::any_of(assignments.begin(), assignments.end(),
                                   [](const auto& one) { return one.servers.size() > 1; });
  std::vector<ServerLoad> loads = *servers;
  absl::Status status;
  for (size_t i = 0; divided && i < tensors.size() && status.ok(); ++i) {
    status = AssignSome(tensors, i, i + 1, &assignments, &loads);
  }
  if (!divided || absl::IsResourceExhausted(status)) {
    loads = *servers;
    status = AssignSome(tensors, 0, tensors.size(), &assignments, &loads);
  }
  if (!status.ok()) return status;
  *servers = std::move(loads);
  return assignments;
}

void Charge(const TensorSize& tensor, const TensorAssignment& assignment,
            std::vector<ServerLoad>* servers) {
  ForEachPartition(tensor, assignment, servers,
                   [](ServerLoad& server, uint64_t& shard, uint64_t bytes, uint64_t memory) {
                     server.load_bytes += bytes;
                     shard += bytes;
                     // A server restarted with a smaller limit may hold more than that: nothing is
                     // free then.
                     if (server.free_bytes != ServerLoad::kUnlimited) {
                       server.free_bytes -= std::min(server.free_bytes, memory);
                     }
                   });
}

void Release(const TensorSize& tensor, const TensorAssignment& assignment,
             std::vector<ServerLoad>* servers) {
  ForEachPartition(tensor, assignment, servers,
                   [](ServerLoad& server, uint64_t& shard, uint64_t bytes, uint64_t memory) {
                     server.load_bytes -= bytes;
                     shard -= bytes;
                     if (server.free_bytes != ServerLoad::kUnlimited) {
                       server.free_bytes += memory;
                     }
                   });
}

}  // namespace addend
