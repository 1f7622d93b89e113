// The metrics of addend-scheduler.
#include "services/scheduler/metrics.h"

#include "absl/strings/str_format.h"
#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

const std::vector<double> kSeconds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3};

prometheus::Gauge& Members(prometheus::Registry* registry, const char* role) {
  return AddGauge(registry, "addend_scheduler_members", "Registered members by role.",
                  {{"role", role}});
}

prometheus::Gauge& JobsIn(prometheus::Registry* registry, const char* state) {
  return AddGauge(registry, "addend_scheduler_jobs", "Jobs by state.", {{"state", state}});
}

prometheus::Counter& Lost(prometheus::Registry* registry, const char* role) {
  return AddCounter(registry, "addend_members_lost_total",
                    "Members that went without leaving, by role.", {{"role", role}});
}

prometheus::Counter* ChangesFor(prometheus::Registry* registry, const char* reason) {
  return &AddCounter(registry, "addend_plan_changes_total",
                     "Plan versions by what made them necessary.", {{"reason", reason}});
}

void RaiseTo(prometheus::Counter& counter, uint64_t value) {
  counter.Increment(static_cast<double>(value) - counter.Value());
}

double Of(const MembershipSummary& summary, v1::JobState state) {
  const auto found = summary.jobs.find(state);
  return found == summary.jobs.end() ? 0 : static_cast<double>(found->second);
}

}  // namespace

JobMetrics::JobMetrics(prometheus::Registry* registry)
    : optimal_(registry, "addend_job_optimal_seconds",
               "The shortest time possible to sum all tensors of the job once, on the servers "
               "that are there; absent while no bandwidth is known."),
      optimal_encoded_(
          registry, "addend_job_optimal_encoded_seconds",
          "The shortest time possible to sum all tensors of the job once, with the bytes that its "
          "payloads take on the wire; that of raw bytes until these are measured."),
      ratios_(registry, "addend_job_wire_ratio",
              "Bytes on the wire for each raw byte of payload with which the job is planned, "
              "by payload (contribution, result); 1 until they are measured."),
      bytes_(registry, "addend_job_tensor_bytes", "Bytes of all planned tensors of the job."),
      nodes_(registry, "addend_job_nodes", "Nodes of the job by state."),
      versions_(registry, "addend_job_plan_version", "The job's plan version.") {}

void JobMetrics::Update(const std::vector<JobSummary>& jobs) {
  LabelledGauges::Values optimal, encoded, ratios, bytes, nodes, versions;
  for (const JobSummary& job : jobs) {
    const MetricLabels label = {{"job_name", job.name}};
    if (job.t_opt_s > 0) optimal[label] = job.t_opt_s;
    if (job.t_opt_encoded_s > 0) encoded[label] = job.t_opt_encoded_s;
    ratios[{{"job_name", job.name}, {"payload", "contribution"}}] = job.ratios.contributions;
    ratios[{{"job_name", job.name}, {"payload", "result"}}] = job.ratios.results;
    bytes[label] = static_cast<double>(job.tensor_bytes);
    versions[label] = static_cast<double>(job.plan_version);
    nodes[{{"job_name", job.name}, {"state", "connected"}}] =
        static_cast<double>(job.nodes_connected);
    nodes[{{"job_name", job.name}, {"state", "expected"}}] =
        static_cast<double>(job.nodes_expected);
  }
  optimal_.Set(optimal);
  optimal_encoded_.Set(encoded);
  ratios_.Set(ratios);
  bytes_.Set(bytes);
  nodes_.Set(nodes);
  versions_.Set(versions);
}

SchedulerMetrics::SchedulerMetrics(prometheus::Registry* registry)
    : cpu_servers_(Members(registry, "cpu_server")),
      colocated_servers_(Members(registry, "colocated_server")),
      nodes_(Members(registry, "node")),
      forming_(JobsIn(registry, "forming")),
      ready_(JobsIn(registry, "ready")),
      failed_(JobsIn(registry, "failed")),
      tensors_(AddGauge(registry, "addend_scheduler_tensors", "Declared tensors of all jobs.")),
      plan_version_(AddGauge(registry, "addend_scheduler_plan_version",
                             "The highest plan version of any job.")),
      imbalance_(
          AddGauge(registry, "addend_scheduler_assignment_imbalance_ratio",
                   "The largest excess of any server's assigned share over its target share, "
                   "as a fraction of its job's bytes.")),
      streams_(AddGauge(registry, "addend_scheduler_watch_streams", "Open watch streams.")),
      planned_(AddCounter(registry, "addend_scheduler_tensors_planned_total",
                          "Tensors that were assigned to servers, repeated attempts included.")),
      refused_(AddCounter(registry, "addend_scheduler_refusals_total",
                          "Calls that were answered with an error.")),
      planning_(AddHistogram(registry, "addend_scheduler_planning_seconds",
                             "Time of the events that planned tensors, without storing.",
                             kSeconds)),
      storing_(AddHistogram(registry, "addend_scheduler_store_seconds",
                            "Time to store what one event changed.", kSeconds)),
      recommended_(AddGauge(registry, "addend_recommended_servers",
                            "CPU servers with which the jobs of now would be as fast as they can "
                            "get, within 1 %.")),
      jobs_(registry),
      speeds_(registry, "addend_server_speed_ratio",
              "Lowest fraction of a CPU server's bandwidth that any job plans with: below 1 after "
              "rounds of that job waited for the server."),
      lost_cpu_servers_(Lost(registry, "cpu_server")),
      lost_colocated_servers_(Lost(registry, "colocated_server")),
      lost_nodes_(Lost(registry, "node")),
      plan_changes_({{PlanReason::kDeclare, ChangesFor(registry, "declare")},
                     {PlanReason::kJoin, ChangesFor(registry, "join")},
                     {PlanReason::kDrain, ChangesFor(registry, "drain")},
                     {PlanReason::kLoss, ChangesFor(registry, "loss")},
                     {PlanReason::kPace, ChangesFor(registry, "pace")},
                     {PlanReason::kEncoding, ChangesFor(registry, "encoding")}}),
      events_(prometheus::BuildCounter()
                  .Name("addend_events_total")
                  .Help("Events, as addendctl status --json shows the last of, by kind.")
                  .Register(*registry)) {}

void SchedulerMetrics::Update(const MembershipSummary& summary, size_t streams) {
  cpu_servers_.Set(static_cast<double>(summary.cpu_servers));
  colocated_servers_.Set(static_cast<double>(summary.colocated_servers));
  nodes_.Set(static_cast<double>(summary.nodes));
  forming_.Set(Of(summary, v1::FORMING));
  ready_.Set(Of(summary, v1::READY));
  failed_.Set(Of(summary, v1::FAILED));
  tensors_.Set(static_cast<double>(summary.tensors));
  plan_version_.Set(static_cast<double>(summary.plan_version));
  imbalance_.Set(summary.imbalance);
  streams_.Set(static_cast<double>(streams));
  recommended_.Set(static_cast<double>(summary.recommended_servers));
  jobs_.Update(summary.by_job);
  UpdateSpeeds(summary);
  UpdateCounters(summary);
}

void SchedulerMetrics::UpdateSpeeds(const MembershipSummary& summary) {
  LabelledGauges::Values speeds;
  for (const ServerSpeed& server : summary.cpu_speeds) {
    const std::string number = absl::StrFormat("%d", server.id.value());
    speeds[{{"server", number}, {"hostname", server.hostname}}] = server.speed;
  }
  speeds_.Set(speeds);
}

void SchedulerMetrics::UpdateCounters(const MembershipSummary& summary) {
  RaiseTo(lost_cpu_servers_, summary.lost.cpu_servers);
  RaiseTo(lost_colocated_servers_, summary.lost.colocated_servers);
  RaiseTo(lost_nodes_, summary.lost.nodes);
  for (const auto& [reason, counter] : plan_changes_) {
    const auto found = summary.plan_changes.find(reason);
    if (found != summary.plan_changes.end()) RaiseTo(*counter, found->second);
  }
  for (const auto& [kind, count] : summary.events) {
    RaiseTo(events_.Add({{"kind", kind}}), count);
  }
}

void SchedulerMetrics::Planned(uint64_t tensors, absl::Duration duration) {
  planned_.Increment(static_cast<double>(tensors));
  planning_.Observe(absl::ToDoubleSeconds(duration));
}

void SchedulerMetrics::Stored(absl::Duration duration) {
  storing_.Observe(absl::ToDoubleSeconds(duration));
}

}  // namespace addend
