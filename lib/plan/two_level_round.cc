// Adds up the bytes on every link for a round of two levels, and the time in which the links fill.

#include "lib/plan/two_level_round.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "lib/base/status_macros.h"
#include "lib/plan/bits.h"

namespace addend {
namespace {

// A machine that sums, and what it has of the round.
struct GroupServer {
  uint32_t group = 0;
  bool gpu = false;
  double bps = 0;
  double owned_target = 0;  // bytes
  // Bytes of partitions, and the largest of them.
  double summed = 0, owned = 0;
  double largest = 0, largest_owned = 0;
  absl::flat_hash_set<uint32_t> owners;  // servers of other groups that it sends sums to
};

// A group, with indices into all servers.
struct ServersOfGroup {
  std::vector<uint32_t> servers;
  std::vector<TensorAssignment> assignments;  // of tensors to `servers`
  double machines = 0;                        // GPU machines
  double slowest_bps = 0;                     // of its GPU machines
};

class TwoLevelTally {
 public:
  TwoLevelTally(const TwoLevelInput& input, const TwoLevelPlan& plan,
                std::span<const TensorSize> tensors)
      : input_(input), tensors_(tensors), groups_(plan.owned.size()) {
    const PlanInput& machines = input.machines;
    const size_t n = machines.gpu_bps.size();
    for (size_t i = 0; i < input.groups.size(); ++i) {
      ServersOfGroup& group = groups_[input.groups[i]];
      const double bps = i < n ? machines.gpu_bps[i] : machines.cpu_bps[i - n];
      if (i < n) {
        group.slowest_bps = group.machines == 0 ? bps : std::min(group.slowest_bps, bps);
        ++group.machines;
        if (!machines.gpu_sums.empty() && !machines.gpu_sums[i]) continue;
      }
      group.servers.push_back(static_cast<uint32_t>(servers_.size()));
      GroupServer server;
      server.group = input.groups[i];
      server.gpu = i < n;
      server.bps = bps;
      server.owned_target = machines.bytes * plan.shares[i] * plan.owned[server.group];
      servers_.push_back(std::move(server));
      shares_.push_back(plan.shares[i]);
    }
  }

  absl::Status AssignAll(const PartitionSize& partition_size) {
    for (ServersOfGroup& group : groups_) {
      std::vector<ServerLoad> loads(group.servers.size());
      for (size_t s = 0; s < loads.size(); ++s) loads[s].share = shares_[group.servers[s]];
      ADDEND_ASSIGN_OR_RETURN(group.assignments, Assign(tensors_, partition_size, &loads));
    }
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const TensorAssignment& any = groups_.front().assignments[t];
      for (size_t i = 0; i < any.servers.size(); ++i) {
        Take(t, i,
             static_cast<double>(
                 ElementsOfPartition(tensors_[t].elements, any.partition_elements, i) *
                 SizeOf(tensors_[t].dtype)));
      }
    }
    return absl::OkStatus();
  }

  // The time that the busiest link takes for its bytes.
  double BusiestSeconds() const {
    double seconds = 0;
    for (const ServersOfGroup& group : groups_) {
      seconds = std::max(seconds, input_.machines.bytes * kBitsPerByte / group.slowest_bps);
    }
    std::vector<double> owned(groups_.size(), 0);
    for (const GroupServer& server : servers_) {
      const double members = groups_[server.group].machines;
      const double between = server.summed + (count() - 2) * server.owned;
      const double carried = server.gpu
                                 ? input_.machines.bytes + (members - 2) * server.summed + between
                                 : members * server.summed + between;
      seconds = std::max(seconds, carried * kBitsPerByte / server.bps);
      owned[server.group] += server.owned;
    }
    for (size_t g = 0; g < input_.uplink_bps.size(); ++g) {
      const double carried = input_.machines.bytes + (count() - 2) * owned[g];
      seconds = std::max(seconds, carried * kBitsPerByte / input_.uplink_bps[g]);
    }
    return seconds;
  }

  // The time in which nothing comes back: the first partition of every server of a group, its
  // group's sum on the way to the owner, and the result on the way back.
  double FillSeconds() const {
    double first_level = 0, second_level = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const ServersOfGroup& group = groups_[g];
      double first_row = 0;
      for (const uint32_t s : group.servers) first_row += servers_[s].largest;
      for (const uint32_t s : group.servers) {
        const GroupServer& server = servers_[s];
        const double arriving = (server.gpu ? group.machines - 1 : group.machines) * server.largest;
        const double leaving = server.gpu ? first_row - server.largest : 0;
        first_level =
            std::max(first_level, std::max(arriving, leaving) * kBitsPerByte / server.bps);
        const double exchanged = (count() - 1) * server.largest_owned;
        second_level = std::max(second_level, 2 * exchanged * kBitsPerByte / server.bps);
      }
      if (input_.uplink_bps.empty()) continue;
      second_level = std::max(second_level, 2 * first_row * kBitsPerByte / input_.uplink_bps[g]);
    }
    return first_level + second_level;
  }

  uint32_t MostLinks() const {
    size_t most = 0;
    for (const ServersOfGroup& group : groups_) {
      size_t used = 0;
      for (const uint32_t s : group.servers) used += servers_[s].summed > 0 ? 1 : 0;
      // Of an agent whose server sums nothing, if there is such an agent.
      if (static_cast<double>(group.servers.size()) < group.machines) most = std::max(most, used);
      for (const uint32_t s : group.servers) {
        const GroupServer& server = servers_[s];
        if (!server.gpu) continue;
        most = std::max(most, used - (server.summed > 0 ? 1 : 0) + server.owners.size());
      }
    }
    return static_cast<uint32_t>(most);
  }

  uint64_t partitions() const { return partitions_; }

 private:
  double count() const { return static_cast<double>(groups_.size()); }
  uint32_t ServerOf(size_t group, size_t tensor, size_t partition) const {
    const ServersOfGroup& g = groups_[group];
    return g.servers[g.assignments[tensor].servers[partition]];
  }

  // Chooses the partition's owner, and adds its bytes.
  void Take(size_t tensor, size_t partition, double bytes) {
    // Equal deficits go round, so that the first partitions of a tensor have owners in all groups.
    const size_t first = partitions_++ % groups_.size();
    uint32_t owner = ServerOf(first, tensor, partition);
    for (size_t step = 1; step < groups_.size(); ++step) {
      const uint32_t other = ServerOf((first + step) % groups_.size(), tensor, partition);
      if (Deficit(other) > Deficit(owner)) owner = other;
    }
    servers_[owner].owned += bytes;
    servers_[owner].largest_owned = std::max(servers_[owner].largest_owned, bytes);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const uint32_t index = ServerOf(g, tensor, partition);
      GroupServer& server = servers_[index];
      server.summed += bytes;
      server.largest = std::max(server.largest, bytes);
      if (index != owner) server.owners.insert(owner);
    }
  }
  double Deficit(uint32_t server) const {
    return servers_[server].owned_target - servers_[server].owned;
  }

  const TwoLevelInput& input_;
  const std::span<const TensorSize> tensors_;
  std::vector<ServersOfGroup> groups_;
  std::vector<GroupServer> servers_;
  std::vector<double> shares_;  // by server, of its group's bytes
  uint64_t partitions_ = 0;
};

}  // namespace

absl::StatusOr<TwoLevelSimulation> SimulateTwoLevelRound(TwoLevelInput input,
                                                         std::span<const TensorSize> tensors,
                                                         const PartitionSize& partition_size) {
  input.machines.bytes = 0;
  for (const TensorSize& tensor : tensors) {
    input.machines.bytes += static_cast<double>(tensor.elements * SizeOf(tensor.dtype));
  }
  ADDEND_ASSIGN_OR_RETURN(const TwoLevelPlan plan, MakeTwoLevelPlan(input));
  TwoLevelTally round(input, plan, tensors);
  ADDEND_RETURN_IF_ERROR(round.AssignAll(partition_size));
  TwoLevelSimulation result;
  result.t_opt_s = plan.t_opt_s;
  result.partitions = round.partitions();
  result.links = round.MostLinks();
  if (input.machines.bytes == 0) return result;
  const double busiest = round.BusiestSeconds();
  result.imbalance = busiest / plan.t_opt_s;
  result.fill_s = round.FillSeconds();
  result.t_s = busiest + result.fill_s;
  return result;
}

}  // namespace addend
