// Rebalancing in two steps: Leaving() chooses the partitions that leave each server, Neediest() the
// server for each of them.

#include "lib/plan/rebalance.h"

#include <algorithm>

namespace addend {
namespace {

// Each server's share of all bytes, those of emptied servers included.
std::vector<double> Targets(std::span<const OwnedPartition> partitions,
                            std::span<const ServerLoad> servers) {
  double total = 0;
  double shares = 0;
  for (const OwnedPartition& partition : partitions) {
    if (!partition.server) total += static_cast<double>(partition.bytes);
  }
  for (const ServerLoad& server : servers) {
    total += static_cast<double>(server.load_bytes);
    shares += server.share;
  }
  std::vector<double> targets;
  for (const ServerLoad& server : servers) targets.push_back(total * server.share / shares);
  return targets;
}

// The partitions that leave their servers: all of an emptied server, and of the others the surplus
// over the target, spread evenly along the tensors. A server with twice its target gives up every
// second partition.
std::vector<size_t> Leaving(std::span<const OwnedPartition> partitions,
                            std::span<const ServerLoad> servers, std::span<const double> targets) {
  std::vector<double> owed(servers.size(), 0);
  std::vector<size_t> leaving;
  for (size_t i = 0; i < partitions.size(); ++i) {
    const OwnedPartition& partition = partitions[i];
    const auto bytes = static_cast<double>(partition.bytes);
    if (partition.server) {
      const auto load = static_cast<double>(servers[*partition.server].load_bytes);
      const double surplus = load - targets[*partition.server];
      if (surplus <= 0) continue;
      double& due = owed[*partition.server];
      due += bytes * surplus / load;
      if (due <= bytes / 2) continue;
      due -= bytes;
    }
    leaving.push_back(i);
  }
  // Partitions of emptied servers come first, because they have to leave; then the largest, as in
  // Assign().
  std::stable_sort(leaving.begin(), leaving.end(), [&](size_t a, size_t b) {
    const bool a_must = !partitions[a].server;
    const bool b_must = !partitions[b].server;
    return a_must != b_must ? a_must : partitions[a].bytes > partitions[b].bytes;
  });
  return leaving;
}

// The server furthest below its target that has memory for the partition.
std::optional<uint32_t> Neediest(const OwnedPartition& partition,
                                 std::span<const ServerLoad> servers,
                                 std::span<const double> targets) {
  std::optional<uint32_t> best;
  const auto lacks = [&](uint32_t i) {
    return targets[i] - static_cast<double>(servers[i].load_bytes);
  };
  for (uint32_t i = 0; i < servers.size(); ++i) {
    if (servers[i].free_bytes < partition.accumulator_bytes || partition.server == i) continue;
    if (!best || lacks(i) > lacks(*best)) best = i;
  }
  // A partition of a remaining server moves only if the move brings the loads closer together.
  if (best && partition.server && lacks(*best) <= static_cast<double>(partition.bytes) / 2) {
    return std::nullopt;
  }
  return best;
}

}  // namespace

std::vector<Move> Rebalance(std::span<const OwnedPartition> partitions,
                            std::vector<ServerLoad> servers) {
  const std::vector<double> targets = Targets(partitions, servers);
  std::vector<Move> moves;
  for (const size_t i : Leaving(partitions, servers, targets)) {
    const OwnedPartition& partition = partitions[i];
    const std::optional<uint32_t> to = Neediest(partition, servers, targets);
    if (!to) continue;
    ServerLoad& server = servers[*to];
    if (partition.server) servers[*partition.server].load_bytes -= partition.bytes;
    server.load_bytes += partition.bytes;
    if (server.free_bytes != ServerLoad::kUnlimited) {
      server.free_bytes -= partition.accumulator_bytes;
    }
    const auto shard = std::min_element(server.shard_loads.begin(), server.shard_loads.end());
    *shard += partition.bytes;
    moves.push_back({i, *to, static_cast<uint32_t>(shard - server.shard_loads.begin())});
  }
  return moves;
}

}  // namespace addend
