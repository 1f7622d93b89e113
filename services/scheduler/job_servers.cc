// The servers that may sum for a job, as the planner takes them.
#include "services/scheduler/job_servers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/member/protocols.h"
#include "lib/wire/frame.h"

namespace addend {
namespace {

// The part of the server's memory that is left for the accumulators of a further tensor of the job.
ServerRoom RoomFor(const Job& job, const Server& server) {
  const uint64_t limit = server.info.job_memory_limit_bytes();
  if (limit == 0) return {server.free_bytes, /*of_job_limit=*/false};
  uint64_t taken = 0;
  for (const auto& [agreement, tensor] : job.current.tensors) {
    const auto owned = tensor.owned.find(server.id);
    if (owned != tensor.owned.end()) taken += owned->second.accumulator_bytes;
  }
  const uint64_t left = limit - std::min(limit, taken);
  if (left >= server.free_bytes) return {server.free_bytes, /*of_job_limit=*/false};
  return {left, /*of_job_limit=*/true};
}

// A shard serves all sets.
void AddShardLoads(const Job& job, ServerId server, std::vector<uint64_t>* shards) {
  for (const auto& [set, loads] : job.current.loads) {
    const auto load = loads.find(server);
    if (load == loads.end()) continue;
    const std::vector<uint64_t>& of_set = load->second.shards;
    for (size_t i = 0; i < std::min(shards->size(), of_set.size()); ++i) (*shards)[i] += of_set[i];
  }
}

// A server that a job needed would have waited for this scheduler before it ended.
bool IsUnheardNewcomer(const Job& job, const Server& server) {
  return !server.colocated() && !server.lease.Heard() &&
         !job.current.plan_servers.contains(server.id);
}

// The bytes of the tensors that each set of ranks has.
std::map<Participants, double> BytesOfSets(const Job& job) {
  std::map<Participants, double> bytes;
  for (const auto& [set, loads] : job.current.loads) {
    for (const auto& [server, load] : loads) bytes[set] += static_cast<double>(load.bytes);
  }
  return bytes;
}

// The parts of the machines' bandwidths that count for the tensors of a set.
class Parts {
 public:
  Parts(const Job& job, const Participants& set, double coming)
      : job_(job), set_(set), bytes_(BytesOfSets(job)) {
    bytes_[set] += coming;
  }

  // A CPU server carries the set's bytes to and from each of its nodes.
  double OfCpuServers() const {
    return Part([this](const Participants& set) {
      return set.CountNodes(job_.settings.num_nodes(), job_.settings.local_size());
    });
  }
  double OfNode(NodeId node) const {
    return Part(
        [this, node](const Participants& set) { return job_.IsAmong(node, set) ? 1u : 0u; });
  }

 private:
  // A set without bytes counts as if it were alone.
  template <typename Times>
  double Part(const Times& times) const {
    const double own = bytes_.at(set_) * times(set_);
    if (bytes_.size() == 1 || own == 0) return 1;
    double all = 0;
    for (const auto& [set, bytes] : bytes_) all += bytes * times(set);
    return own / all;
  }

  const Job& job_;
  const Participants& set_;
  std::map<Participants, double> bytes_;
};

}  // namespace

std::vector<Participants> SetsOf(const Job& job) {
  std::vector<Participants> sets;
  for (const auto& [set, bytes] : BytesOfSets(job)) {
    if (bytes > 0) sets.push_back(set);
  }
  return sets;
}

bool MayUse(const Job& job, const Server& server) {
  if (!job.frames.AllSpeakWith(server.info.protocols())) return false;
  if (job.current.lossy && FramesOf(server.info.protocols()).newest < kEncodingsSince) return false;
  if (!server.colocated()) return !job.avoided.contains(server.id);
  // A server that registered before its job was not asked for the job's secret.
  return server.info.colocated_job() == job.name && server.secret_digest == job.secret_digest;
}

const Server* ColocatedServer(const Job& job, NodeId node, const Fleet& fleet) {
  const Server* const server = fleet.FindColocated(job.name, node, job.secret_digest);
  return server != nullptr && MayUse(job, *server) ? server : nullptr;
}

std::vector<const Server*> EligibleServers(const Job& job, const Fleet& fleet) {
  std::vector<const Server*> servers;
  for (const auto& [rank, node] : job.nodes) {
    if (node.info.colocated_server_id() == 0) continue;
    if (const Server* server = ColocatedServer(job, rank, fleet)) servers.push_back(server);
  }
  for (const ServerId id : fleet.cpu_servers()) {
    const Server* const server = fleet.Find(id);
    if (MayUse(job, *server)) servers.push_back(server);
  }
  return servers;
}

PartitionSize PartitionSizeOf(const Job& job, const Fleet& fleet) {
  if (job.settings.partition_bytes() != 0) return job.settings.partition_bytes();
  double slowest = 0;
  for (const auto& [rank, node] : job.nodes) {
    const double bps = node.info.bandwidth_bps();
    if (bps > 0 && (slowest == 0 || bps < slowest)) slowest = bps;
  }
  return PartitionSize::Auto(slowest, EligibleServers(job, fleet).size());
}

PlannerJob ViewOf(const Job& job, const Fleet& fleet, size_t jobs, const Participants& set,
                  double coming, Candidates candidates) {
  PlannerJob view;
  const Parts parts(job, set, coming);
  const double part_of_cpu_servers = parts.OfCpuServers();
  const auto loads_of_set = job.current.loads.find(set);
  view.nodes = job.settings.num_nodes();
  view.ratios = job.current.ratios.planned();
  // The nodes of the generation, numbered without gaps.
  std::map<NodeId, NodeId> number;
  for (uint32_t i = 0; i < job.settings.num_nodes(); ++i) {
    const NodeId rank(i);
    if (job.current.gone.contains(rank) || !job.IsAmong(rank, set)) continue;
    number[rank] = NodeId(static_cast<uint32_t>(view.node_bps.size()));
    const auto node = job.nodes.find(rank);
    const double bps = node == job.nodes.end() ? 0 : node->second.info.bandwidth_bps();
    view.node_bps.push_back(bps * parts.OfNode(rank));
  }
  for (const Server* server : EligibleServers(job, fleet)) {
    const NodeId rank(server->info.colocated_node());
    if (server->draining || (server->colocated() && !number.contains(rank))) continue;
    if (candidates == Candidates::kHeard && IsUnheardNewcomer(job, *server)) continue;
    PlannerServer seen;
    seen.id = server->id;
    seen.name = NameOf(*server);
    if (server->colocated()) seen.node = number.at(rank);
    seen.bandwidth_bps = server->info.bandwidth_bps();
    seen.speed = job.SpeedOf(server->id);
    if (!server->colocated()) seen.speed *= part_of_cpu_servers;
    seen.jobs = server->colocated() ? 1 : static_cast<uint32_t>(jobs);
    const ServerRoom room = RoomFor(job, *server);
    seen.load.free_bytes = room.bytes;
    seen.job_limited = room.of_job_limit;
    seen.load.shard_loads.assign(server->info.shards(), 0);
    if (loads_of_set != job.current.loads.end()) {
      const auto load = loads_of_set->second.find(server->id);
      if (load != loads_of_set->second.end()) seen.load.load_bytes = load->second.bytes;
    }
    AddShardLoads(job, server->id, &seen.load.shard_loads);
    view.servers.push_back(std::move(seen));
  }
  return view;
}

PublishedPartitions PublishedPartitionsOf(const Job& job, const Participants& set) {
  PublishedPartitions published;
  for (const auto& [agreement, tensor] : job.current.tensors) {
    if (tensor.stage != v1::AgreementRecord::PLANNED || tensor.participants != set) continue;
    ForEachPartition(tensor.plan, job.settings.num_nodes(),
                     [&, number = agreement](const PlannedPartition& partition) {
                       published.partitions.push_back(partition);
                       published.agreements.push_back(number);
                     });
  }
  return published;
}

}  // namespace addend
