// The state as people and metrics are shown it.
#include "services/scheduler/status_view.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/stragglers.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

double SecondsSince(absl::Time then, absl::Time now) {
  return absl::ToDoubleSeconds(now - std::min(now, then));
}

v1::NodeStatus StatusOf(const Node& node, absl::Time now) {
  v1::NodeStatus status;
  status.set_node_rank(node.rank.value());
  status.set_connected(node.lease.watch != 0);
  status.set_hostname(node.info.hostname());
  status.set_control_address(node.info.control_address());
  status.set_incarnation(node.info.incarnation());
  status.set_bandwidth_bps(node.info.bandwidth_bps());
  status.set_last_seen_s(SecondsSince(node.lease.last_seen, now));
  *status.mutable_traffic() = node.beat.traffic();
  status.set_activity(node.beat.activity());
  status.set_links(node.beat.links());
  return status;
}

v1::ServerStatus StatusOf(const Server& server, double speed, absl::Time now) {
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
  status.set_last_seen_s(SecondsSince(server.lease.last_seen, now));
  *status.mutable_traffic() = server.beat.traffic();
  status.set_activity(server.beat.activity());
  status.set_draining(server.draining);
  status.set_speed(speed);
  return status;
}

double SpeedIn(const std::map<ServerId, double>& speeds, ServerId server) {
  const auto found = speeds.find(server);
  return found == speeds.end() ? 1 : found->second;
}

JobSummary SummaryOf(const Job& job, const v1::JobStatus& status) {
  const auto connected = std::count_if(job.nodes.begin(), job.nodes.end(), [](const auto& node) {
    return node.second.lease.watch != 0;
  });
  return {
      .name = job.name,
      .t_opt_s = status.t_opt_s(),
      .t_opt_encoded_s = status.t_opt_encoded_s() > 0 ? status.t_opt_encoded_s() : status.t_opt_s(),
      .ratios = job.current.ratios.planned(),
      .tensor_bytes = status.tensor_bytes(),
      .nodes_connected = static_cast<uint64_t>(connected),
      .nodes_expected = job.settings.num_nodes(),
      .plan_version = job.plan_version.value()};
}

}  // namespace

v1::GetStatusResponse StatusView::Status(absl::Time now) const {
  v1::GetStatusResponse response;
  response.set_version(process_.version);
  response.set_uptime_s(absl::ToDoubleSeconds(now - process_.started));
  response.set_store(process_.store);
  const std::map<ServerId, double> speeds = LowestSpeeds(jobs_);
  for (const auto& [id, server] : fleet_.servers()) {
    *response.add_servers() = addend::StatusOf(server, SpeedIn(speeds, id), now);
  }
  for (const auto& [id, job] : jobs_) *response.add_jobs() = StatusOf(job, now);
  for (const v1::Event& event : history_.log.events()) *response.add_events() = event;
  response.set_recommended_servers(static_cast<uint32_t>(RecommendedServers()));
  response.set_now_unix_s(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  return response;
}

v1::GetStatusResponse StatusView::OfJob(const v1::GetStatusResponse& all, const std::string& job) {
  v1::GetStatusResponse part;
  part.set_version(all.version());
  part.set_uptime_s(all.uptime_s());
  part.set_store(all.store());
  for (const v1::ServerStatus& server : all.servers()) {
    if (!server.colocated() || server.job() == job) *part.add_servers() = server;
  }
  for (const v1::JobStatus& status : all.jobs()) {
    if (status.name() == job) *part.add_jobs() = status;
  }
  for (const v1::Event& event : all.events()) {
    if (event.job().empty() || event.job() == job) *part.add_events() = event;
  }
  part.set_recommended_servers(all.recommended_servers());
  part.set_now_unix_s(all.now_unix_s());
  return part;
}

uint64_t StatusView::RecommendedServers() const {
  uint64_t servers = 0;
  for (const auto& [id, job] : jobs_) {
    if (job.current.state == v1::FAILED || !job.AllHaveRegistered()) continue;
    servers += RecommendServers(ViewOf(job, fleet_, jobs_.size(), {}, 0, Candidates::kAll));
  }
  return servers;
}

v1::JobStatus StatusView::StatusOf(const Job& job, absl::Time now) const {
  v1::JobStatus status = WithoutNodes(job, now);
  AddNodes(job, now, &status);
  return status;
}

v1::JobStatus StatusView::WithoutNodes(const Job& job, absl::Time now) const {
  const JobGeneration& current = job.current;
  v1::JobStatus status;
  status.set_name(job.name);
  status.set_job_id(job.id.value());
  status.set_generation(current.number.value());
  status.set_state(current.state);
  status.set_reason(current.reason);
  if (current.state == v1::FORMING && !current.reason.empty()) {
    absl::StrAppendFormat(status.mutable_reason(), ", %.0f s",
                          absl::ToDoubleSeconds(now - current.forming_since));
  }
  *status.mutable_settings() = job.settings;
  status.mutable_settings()->set_partition_bytes(PartitionSizeOf(job, fleet_).least());
  status.set_plan_version(job.plan_version.value());
  status.set_uptime_s(absl::ToDoubleSeconds(now - job.created));
  uint64_t bytes = 0;
  uint32_t tensors = 0;
  for (const auto& [agreement, tensor] : current.tensors) {
    if (tensor.stage != Stages::PLANNED) continue;
    bytes += BytesOf(tensor.descriptor);
    ++tensors;
  }
  status.set_tensor_bytes(bytes);
  status.set_tensors(tensors);
  status.set_contribution_ratio(current.ratios.planned().contributions);
  status.set_result_ratio(current.ratios.planned().results);
  if (job.AllHaveRegistered()) AddShares(job, &status);
  return status;
}

void StatusView::AddNodes(const Job& job, absl::Time now, v1::JobStatus* status) const {
  for (const auto& [rank, node] : job.nodes) {
    v1::NodeStatus* shown = status->add_nodes();
    *shown = addend::StatusOf(node, now);
    // Rounds of a former generation say nothing of this generation.
    if (Generation(node.beat.generation()) == job.current.number) {
      *shown->mutable_rounds() = node.beat.rounds();
    }
  }
  const FirstNonfinite& nonfinite = job.current.nonfinite;
  const bool all_heard =
      std::none_of(nonfinite.awaited.begin(), nonfinite.awaited.end(),
                   [&job](const auto& entry) { return job.nodes.contains(entry.first); });
  if (all_heard) status->set_first_nonfinite(nonfinite.text);
}

void StatusView::AddShares(const Job& job, v1::JobStatus* status) const {
  std::vector<Participants> sets = SetsOf(job);
  if (sets.empty()) sets.emplace_back();
  const auto bytes = static_cast<double>(status->tensor_bytes());
  double assigned = 0;
  double t_opt_s = 0;
  double t_opt_encoded_s = 0;
  struct Bytes {
    double target = 0;
    double assigned = 0;
  };
  std::map<ServerId, Bytes> servers;
  for (const Participants& set : sets) {
    const PlannerJob view = ViewOf(job, fleet_, jobs_.size(), set);
    double of_set = 0;
    for (const PlannerServer& server : view.servers) {
      of_set += static_cast<double>(server.load.load_bytes);
    }
    // Shares do not depend on M; a job without tensors is shown the shares of a byte.
    const double shared = sets.size() == 1 && bytes > 0 ? bytes : std::max(of_set, 1.0);
    const auto targets = TargetShares(view, shared);
    if (!targets.ok()) return;  // nobody sums for it
    t_opt_s = std::max(t_opt_s, targets->t_opt_s.value_or(0));
    t_opt_encoded_s = std::max(t_opt_encoded_s, targets->t_opt_encoded_s.value_or(0));
    assigned += of_set;
    for (size_t i = 0; i < view.servers.size(); ++i) {
      Bytes& server = servers[view.servers[i].id];
      server.target += targets->shares[i] * std::max(of_set, 1.0);
      server.assigned += static_cast<double>(view.servers[i].load.load_bytes);
    }
  }
  if (bytes > 0) {
    status->set_t_opt_s(t_opt_s);
    if (job.current.ratios.settled()) status->set_t_opt_encoded_s(t_opt_encoded_s);
  }
  double all_targets = 0;
  for (const auto& [id, server] : servers) all_targets += server.target;
  for (const Server* server : EligibleServers(job, fleet_)) {
    const auto of_server = servers.find(server->id);
    if (of_server == servers.end()) continue;
    v1::ServerShare* share = status->add_shares();
    share->set_server_id(server->id.value());
    share->set_share(of_server->second.target / all_targets);
    if (assigned > 0) share->set_assigned(of_server->second.assigned / assigned);
  }
}

MembershipSummary StatusView::Summary() const {
  MembershipSummary summary;
  summary.recommended_servers = RecommendedServers();
  summary.lost = history_.lost;
  summary.plan_changes = history_.plan_changes;
  summary.events = history_.log.counts();
  const std::map<ServerId, double> speeds = LowestSpeeds(jobs_);
  for (const auto& [id, server] : fleet_.servers()) {
    ++(server.colocated() ? summary.colocated_servers : summary.cpu_servers);
    if (!server.colocated()) {
      summary.cpu_speeds.push_back({id, server.info.hostname(), SpeedIn(speeds, id)});
    }
  }
  for (const auto& [id, job] : jobs_) {
    ++summary.jobs[job.current.state];
    summary.nodes += job.nodes.size();
    summary.tensors += job.current.tensors.size();
    summary.plan_version = std::max(summary.plan_version, job.plan_version.value());
    const v1::JobStatus status = WithoutNodes(job, process_.started);
    summary.by_job.push_back(SummaryOf(job, status));
    if (job.current.tensors.empty()) continue;
    for (const v1::ServerShare& share : status.shares()) {
      summary.imbalance = std::max(summary.imbalance, share.assigned() - share.share());
    }
  }
  return summary;
}

}  // namespace addend
