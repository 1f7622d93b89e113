// What addend-scheduler exports at /metrics.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "absl/time/time.h"
#include "services/scheduler/membership.h"

namespace addend {

// Made once; the registry must outlive it. From any thread.
class SchedulerMetrics {
 public:
  explicit SchedulerMetrics(prometheus::Registry* registry);

  void Update(const MembershipSummary& summary, size_t streams);
  void Planned(uint64_t tensors, absl::Duration duration);
  void Refused() { refused_.Increment(); }
  void Stored(absl::Duration duration);

 private:
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
};

}  // namespace addend
