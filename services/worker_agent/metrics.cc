#include "services/worker_agent/metrics.h"

#include "lib/telemetry/metrics.h"

namespace addend {

std::vector<prometheus::MetricFamily> AgentMetrics::Collect() const {
  using prometheus::MetricType;
  const v1::GetAgentResponse agent = agent_->Snapshot();
  const auto d = [](uint64_t value) { return static_cast<double>(value); };
  double connected = 0;
  for (const v1::TrainerInfo& trainer : agent.trainers()) connected += trainer.connected();
  const v1::Traffic& traffic = agent.traffic();
  double tcp = 0, rdma = 0;
  for (const v1::LinkInfo& link : agent.links()) {
    if (!link.connected()) continue;
    tcp += link.transport() == "tcp";
    rdma += link.transport() == "rdma";
  }
  return {
      MakeFamily(
          "addend_agent_network_bytes_total",
          "Bytes on the sockets between the agent and the summation servers, headers included.",
          MetricType::Counter,
          {{"sent", d(traffic.network_bytes_sent())},
           {"received", d(traffic.network_bytes_received())}},
          "direction"),
      MakeFamily("addend_agent_local_bytes_total",
                 "Payload bytes that passed to the colocated summation server by pointer.",
                 MetricType::Counter, {{"", d(traffic.local_bytes())}}),
      MakeFamily("addend_agent_copied_bytes_total",
                 "Payload bytes that the agent copied in user space.", MetricType::Counter,
                 {{"", d(traffic.copied_bytes())}}),
      MakeFamily("addend_agent_links",
                 "Links to the shards of other machines' summation servers that are open, by "
                 "transport.",
                 MetricType::Gauge, {{"tcp", tcp}, {"rdma", rdma}}, "transport"),
      MakeFamily("addend_agent_rdma_fallbacks_total",
                 "Links that were tried over TCP because RDMA had failed.", MetricType::Counter,
                 {{"", d(agent.rdma_fallbacks())}}),
      MakeFamily("addend_agent_trainers", "Trainers of this node that are connected.",
                 MetricType::Gauge, {{"", connected}}),
      MakeFamily("addend_agent_open_rounds",
                 "Rounds that a local rank has pushed and that have no result yet.",
                 MetricType::Gauge, {{"", d(agent.open_rounds())}}),
      MakeFamily("addend_agent_shared_memory_bytes",
                 "Size of the segments shared with the trainers.", MetricType::Gauge,
                 {{"", d(agent.shared_memory_bytes())}}),
      MakeFamily("addend_agent_plan_version", "Version of the plan that the agent follows.",
                 MetricType::Gauge, {{"", d(agent.plan_version())}}),
  };
}

}  // namespace addend
