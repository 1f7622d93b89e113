// The agent's instruments, read from its counters when Prometheus asks.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <vector>

#include "services/worker_agent/agent.h"

namespace addend {

class AgentMetrics final : public prometheus::Collectable {
 public:
  // `agent` must outlive this.
  explicit AgentMetrics(Agent* agent) : agent_(agent) {}
  std::vector<prometheus::MetricFamily> Collect() const override;
  // Pure. `memory_limit_bytes`: of the agent's container; 0: no limit.
  static std::vector<prometheus::MetricFamily> FamiliesOf(const v1::GetAgentResponse& agent,
                                                          const AgentNumbers& numbers,
                                                          uint64_t memory_limit_bytes);

 private:
  Agent* const agent_;
};

}  // namespace addend
