// Adds up the bytes on every link for a round, and the time in which the links fill up.

#include "lib/plan/simulation.h"

#include <algorithm>
#include <vector>

#include "lib/base/status_macros.h"
#include "lib/plan/bits.h"
#include "lib/plan/hash_assignment.h"

namespace addend {
namespace {

std::vector<double> SharesOf(const Plan& plan) {
  std::vector<double> shares = plan.gpu_shares;
  shares.insert(shares.end(), plan.cpu_shares.begin(), plan.cpu_shares.end());
  return shares;
}

// The bytes that a GPU machine which sums `summed` of `total` carries in its busier direction.
double CarriedByGpuMachine(const WireRatios& ratios, double n, double total, double summed) {
  const double c = ratios.contributions, r = ratios.results;
  return std::max(c * total + (r * (n - 1) - c) * summed, r * total + (c * (n - 1) - r) * summed);
}

absl::StatusOr<std::vector<TensorAssignment>> AssignAll(std::span<const TensorSize> tensors,
                                                        const PartitionSize& partition_size,
                                                        AssignmentKind kind, const Plan& plan) {
  if (kind == AssignmentKind::kHash) {
    return AssignByHash(tensors, partition_size, plan.gpu_shares.size(), plan.cpu_shares.size());
  }
  std::vector<ServerLoad> servers;
  for (const double share : SharesOf(plan)) {
    ServerLoad server;
    server.share = share;
    servers.push_back(server);
  }
  return Assign(tensors, partition_size, &servers);
}

}  // namespace

absl::StatusOr<Simulation> SimulateRound(PlanInput machines, std::span<const TensorSize> tensors,
                                         const PartitionSize& partition_size, AssignmentKind kind) {
  double total = 0;
  for (const TensorSize& tensor : tensors) {
    total += static_cast<double>(tensor.elements * SizeOf(tensor.dtype));
  }
  machines.bytes = total;
  ADDEND_ASSIGN_OR_RETURN(const Plan plan, MakePlan(machines));
  ADDEND_ASSIGN_OR_RETURN(const auto assignments, AssignAll(tensors, partition_size, kind, plan));
  const double n = static_cast<double>(machines.gpu_bps.size());
  std::vector<double> bps = machines.gpu_bps;
  bps.insert(bps.end(), machines.cpu_bps.begin(), machines.cpu_bps.end());
  std::vector<double> summed(bps.size(), 0), largest(bps.size(), 0);
  Simulation result;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorAssignment& a = assignments[t];
    for (size_t i = 0; i < a.servers.size(); ++i) {
      const double bytes =
          static_cast<double>(ElementsOfPartition(tensors[t].elements, a.partition_elements, i) *
                              SizeOf(tensors[t].dtype));
      summed[a.servers[i]] += bytes;
      largest[a.servers[i]] = std::max(largest[a.servers[i]], bytes);
      ++result.partitions;
    }
  }
  if (!plan.t_opt_s || total == 0) return result;
  result.t_opt_s = *plan.t_opt_s;
  result.t_opt_encoded_s = *plan.t_opt_encoded_s;
  const double c = machines.ratios.contributions;
  double busiest = 0, first_row = 0;
  for (const double bytes : largest) first_row += bytes;
  for (size_t machine = 0; machine < bps.size(); ++machine) {
    const bool gpu = machine < machines.gpu_bps.size();
    const double carried = gpu ? CarriedByGpuMachine(machines.ratios, n, total, summed[machine])
                               : std::max(c, machines.ratios.results) * n * summed[machine];
    busiest = std::max(busiest, carried * kBitsPerByte / bps[machine]);
    // A colocated server already has the contribution of its own node.
    const double arriving = c * (gpu ? n - 1 : n) * largest[machine];
    const double leaving = gpu ? c * (first_row - largest[machine]) : 0;
    result.fill_s = std::max({result.fill_s, arriving * kBitsPerByte / bps[machine],
                              leaving * kBitsPerByte / bps[machine]});
  }
  result.imbalance = busiest / result.t_opt_encoded_s;
  result.t_s = busiest + result.fill_s;
  return result;
}

}  // namespace addend
