// Membership: what people and metrics are shown.
#include <algorithm>
#include <cmath>

#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

v1::NodeStatus StatusOf(const Node& node, absl::Time now) {
  v1::NodeStatus status;
  status.set_node_rank(node.rank.value());
  status.set_connected(node.lease.watch != 0);
  status.set_hostname(node.info.hostname());
  status.set_control_address(node.info.control_address());
  status.set_incarnation(node.info.incarnation());
  status.set_bandwidth_bps(node.info.bandwidth_bps());
  status.set_last_seen_s(absl::ToDoubleSeconds(now - std::min(now, node.lease.last_seen)));
  *status.mutable_traffic() = node.beat.traffic();
  status.set_activity(node.beat.activity());
  status.set_links(node.beat.links());
  return status;
}

v1::ServerStatus StatusOf(const Server& server, absl::Time now) {
  v1::ServerStatus status;
  status.set_server_id(server.id.value());
  status.set_incarnation(server.info.incarnation());
  status.set_hostname(server.info.hostname());
  status.set_control_address(server.info.control_address());
  *status.mutable_endpoints() = server.info.endpoints();
  status.set_shards(server.info.shards());
  status.set_bandwidth_bps(server.info.bandwidth_bps());
  status.set_memory_limit_bytes(server.info.memory_limit_bytes());
  status.set_memory_used_bytes(server.beat.memory_used_bytes());
  status.set_colocated(server.colocated());
  status.set_job(server.info.colocated_job());
  status.set_node_rank(server.info.colocated_node());
  status.set_last_seen_s(absl::ToDoubleSeconds(now - std::min(now, server.lease.last_seen)));
  *status.mutable_traffic() = server.beat.traffic();
  status.set_activity(server.beat.activity());
  status.set_draining(server.draining);
  status.set_speed(server.speed);
  return status;
}

JobSummary SummaryOf(const Job& job, const v1::JobStatus& status) {
  const auto connected = std::count_if(job.nodes.begin(), job.nodes.end(), [](const auto& node) {
    return node.second.lease.watch != 0;
  });
  return {.name = job.name,
          .t_opt_s = status.t_opt_s(),
          .tensor_bytes = status.tensor_bytes(),
          .nodes_connected = static_cast<uint64_t>(connected),
          .nodes_expected = job.settings.num_nodes(),
          .plan_version = job.plan_version.value()};
}

}  // namespace

v1::GetStatusResponse Membership::GetStatus(absl::Time now,
                                            const v1::GetStatusRequest& request) const {
  v1::GetStatusResponse response;
  response.set_version(options_.version);
  response.set_uptime_s(absl::ToDoubleSeconds(now - started_));
  response.set_store(options_.store);
  for (const auto& [id, server] : servers_) {
    const bool other = !request.job().empty() && server.colocated() &&
                       server.info.colocated_job() != request.job();
    if (!other) *response.add_servers() = StatusOf(server, now);
  }
  for (const auto& [id, job] : jobs_) {
    if (request.job().empty() || request.job() == job.name) {
      *response.add_jobs() = StatusOfJob(job, now);
    }
  }
  for (const v1::Event& event : log_.events()) {
    const bool other = !event.job().empty() && event.job() != request.job();
    if (request.job().empty() || !other) *response.add_events() = event;
  }
  response.set_recommended_servers(static_cast<uint32_t>(RecommendedServers()));
  response.set_now_unix_s(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  return response;
}

uint64_t Membership::RecommendedServers() const {
  uint64_t servers = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.state != v1::FAILED) servers += RecommendServers(ViewOf(job));
  }
  return servers;
}

v1::JobStatus Membership::StatusOfJob(const Job& job, absl::Time now) const {
  v1::JobStatus status;
  status.set_name(job.name);
  status.set_job_id(job.id.value());
  status.set_generation(job.generation.value());
  status.set_state(job.state);
  status.set_reason(job.reason);
  if (job.state == v1::FORMING && !job.reason.empty()) {
    absl::StrAppendFormat(status.mutable_reason(), ", %.0f s",
                          absl::ToDoubleSeconds(now - job.forming_since));
  }
  *status.mutable_settings() = job.settings;
  status.mutable_settings()->set_partition_bytes(PartitionSizeOf(job).least());
  status.set_plan_version(job.plan_version.value());
  status.set_uptime_s(absl::ToDoubleSeconds(now - job.created));
  for (const auto& [rank, node] : job.nodes) {
    v1::NodeStatus* shown = status.add_nodes();
    *shown = StatusOf(node, now);
    // Those of a former generation say nothing of this one.
    if (Generation(node.beat.generation()) == job.generation) {
      *shown->mutable_rounds() = node.beat.rounds();
    }
  }
  const bool all_heard = std::none_of(job.nonfinite_unheard.begin(), job.nonfinite_unheard.end(),
                                      [&job](NodeId rank) { return job.nodes.contains(rank); });
  if (all_heard) status.set_first_nonfinite(job.first_nonfinite);
  uint64_t bytes = 0;
  uint32_t tensors = 0;
  for (const auto& [agreement, tensor] : job.tensors) {
    if (tensor.stage != Stages::PLANNED) continue;
    bytes += BytesOf(tensor.descriptor);
    ++tensors;
  }
  status.set_tensor_bytes(bytes);
  status.set_tensors(tensors);

  const PlannerJob view = ViewOf(job);
  // Shares do not depend on M; a job without tensors is shown those of a byte.
  const auto targets = TargetShares(view, bytes == 0 ? 1.0 : static_cast<double>(bytes));
  if (!targets.ok()) return status;  // nobody sums for it
  if (bytes > 0) status.set_t_opt_s(targets->t_opt_s.value_or(0));
  uint64_t assigned = 0;
  for (const PlannerServer& server : view.servers) assigned += server.load.load_bytes;
  for (size_t i = 0; i < view.servers.size(); ++i) {
    v1::ServerShare* share = status.add_shares();
    share->set_server_id(view.servers[i].id.value());
    share->set_share(targets->shares[i]);
    if (assigned == 0) continue;
    share->set_assigned(static_cast<double>(view.servers[i].load.load_bytes) /
                        static_cast<double>(assigned));
  }
  return status;
}

MembershipSummary Membership::Summary() const {
  MembershipSummary summary;
  summary.recommended_servers = RecommendedServers();
  summary.lost = lost_;
  summary.plan_changes = plan_changes_;
  summary.events = log_.counts();
  for (const auto& [id, server] : servers_) {
    ++(server.colocated() ? summary.colocated_servers : summary.cpu_servers);
    if (!server.colocated()) {
      summary.cpu_speeds.push_back({id, server.info.hostname(), server.speed});
    }
  }
  for (const auto& [id, job] : jobs_) {
    ++summary.jobs[job.state];
    summary.nodes += job.nodes.size();
    summary.tensors += job.tensors.size();
    summary.plan_version = std::max(summary.plan_version, job.plan_version.value());
    const v1::JobStatus status = StatusOfJob(job, started_);
    summary.by_job.push_back(SummaryOf(job, status));
    if (job.tensors.empty()) continue;
    for (const v1::ServerShare& share : status.shares()) {
      summary.imbalance = std::max(summary.imbalance, share.assigned() - share.share());
    }
  }
  return summary;
}

}  // namespace addend
