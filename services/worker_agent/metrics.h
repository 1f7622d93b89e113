// The agent's instruments, read from its counters when Prometheus asks.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "services/worker_agent/agent.h"

namespace addend {

class AgentMetrics final : public prometheus::Collectable {
 public:
  // `agent` must outlive this.
  explicit AgentMetrics(Agent* agent) : agent_(agent) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Agent* const agent_;
};

}  // namespace addend
