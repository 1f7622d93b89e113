// The metrics of addend-scheduler.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <vector>

#include "absl/time/time.h"
#include "lib/telemetry/labelled_gauges.h"
#include "services/scheduler/membership.h"

namespace addend {

// The gauges of each job. The registry must outlive them.
class JobMetrics {
 public:
  explicit JobMetrics(prometheus::Registry* registry);

  void Update(const std::vector<JobSummary>& jobs);

 private:
  LabelledGauges optimal_;
  LabelledGauges optimal_encoded_;
  LabelledGauges ratios_;
  LabelledGauges bytes_;
  LabelledGauges nodes_;
  LabelledGauges versions_;
};

// Made once; the registry must outlive it. From any thread.
class SchedulerMetrics {
 public:
  explicit SchedulerMetrics(prometheus::Registry* registry);

  void Update(const MembershipSummary& summary, size_t streams);
  void Planned(uint64_t tensors, absl::Duration duration);
  void Refused() { refused_.Increment(); }
  void Stored(absl::Duration duration);

 private:
  void UpdateSpeeds(const MembershipSummary& summary);
  void UpdateCounters(const MembershipSummary& summary);

  prometheus::Gauge& cpu_servers_;
  prometheus::Gauge& colocated_servers_;
  prometheus::Gauge& nodes_;
  prometheus::Gauge& forming_;
  prometheus::Gauge& ready_;
  prometheus::Gauge& failed_;
  prometheus::Gauge& tensors_;
  prometheus::Gauge& plan_version_;
  prometheus::Gauge& imbalance_;
  prometheus::Gauge& streams_;
  prometheus::Counter& planned_;
  prometheus::Counter& refused_;
  prometheus::Histogram& planning_;
  prometheus::Histogram& storing_;
  prometheus::Gauge& recommended_;
  JobMetrics jobs_;
  LabelledGauges speeds_;
  prometheus::Counter& lost_cpu_servers_;
  prometheus::Counter& lost_colocated_servers_;
  prometheus::Counter& lost_nodes_;
  const std::map<PlanReason, prometheus::Counter*> plan_changes_;
  prometheus::Family<prometheus::Counter>& events_;
};

}  // namespace addend
