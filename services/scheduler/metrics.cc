#include "services/scheduler/metrics.h"

#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

const std::vector<double> kSeconds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3};

prometheus::Gauge& Members(prometheus::Registry* registry, const char* role) {
  return AddGauge(registry, "addend_scheduler_members", "Registered members by role.",
                  {{"role", role}});
}

prometheus::Gauge& Jobs(prometheus::Registry* registry, const char* state) {
  return AddGauge(registry, "addend_scheduler_jobs", "Jobs by state.", {{"state", state}});
}

double Of(const MembershipSummary& summary, v1::JobState state) {
  const auto found = summary.jobs.find(state);
  return found == summary.jobs.end() ? 0 : static_cast<double>(found->second);
}

}  // namespace

SchedulerMetrics::SchedulerMetrics(prometheus::Registry* registry)
    : cpu_servers_(Members(registry, "cpu_server")),
      colocated_servers_(Members(registry, "colocated_server")),
      nodes_(Members(registry, "node")),
      forming_(Jobs(registry, "forming")),
      ready_(Jobs(registry, "ready")),
      failed_(Jobs(registry, "failed")),
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
                            "Time to store what one event changed.", kSeconds)) {}

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
}

void SchedulerMetrics::Planned(uint64_t tensors, absl::Duration duration) {
  planned_.Increment(static_cast<double>(tensors));
  planning_.Observe(absl::ToDoubleSeconds(duration));
}

void SchedulerMetrics::Stored(absl::Duration duration) {
  storing_.Observe(absl::ToDoubleSeconds(duration));
}

}  // namespace addend
