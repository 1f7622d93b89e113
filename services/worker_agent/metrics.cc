// Builds the metric families from a snapshot and the numbers of the agent.
#include "services/worker_agent/metrics.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lib/base/failure.h"
#include "lib/memory/container_limit.h"
#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

double Number(uint64_t value) { return static_cast<double>(value); }

MetricFamily Labelled(const std::string& name, const std::string& help, MetricType type,
                      const MetricLabels& labels, double value) {
  return MakeFamily(name, help, type, std::vector<ClientMetric>{MakeValue(labels, value, type)});
}

// A metric of both directions.
MetricFamily Directions(const std::string& name, const std::string& help,
                        const MetricLabels& labels, uint64_t out, uint64_t in) {
  MetricLabels out_labels = labels, in_labels = labels;
  out_labels["direction"] = "out";
  in_labels["direction"] = "in";
  return MakeFamily(
      name, help, MetricType::Counter,
      std::vector<ClientMetric>{MakeValue(out_labels, Number(out), MetricType::Counter),
                                MakeValue(in_labels, Number(in), MetricType::Counter)});
}

// The two decisive metrics: the duration of rounds, and the shortest duration possible.
void AppendRounds(const AgentNumbers& n, const MetricLabels& node, Families* families) {
  families->push_back(MakeFamily(
      "addend_round_seconds",
      "Rounds of the job on this node: from the first tensor that all local ranks have pushed "
      "until "
      "no result is awaited. Those of synchronous sums whose optimum is at least a millisecond.",
      MetricType::Histogram, std::vector<ClientMetric>{MakeValue(node, n.rounds.seconds)}));
  families->push_back(Labelled("addend_optimal_seconds_total",
                               "The shortest time possible for the rounds in addend_round_seconds, "
                               "on the plans then in force.",
                               MetricType::Counter, node, n.rounds.optimal_s));
  families->push_back(Labelled("addend_round_optimal_seconds",
                               "The shortest time possible for the last round.", MetricType::Gauge,
                               node, n.rounds.last_optimal_s));
  double took = 0, optimal = 0;
  for (const auto& [seconds, optimal_s] : n.rounds.recent) {
    took += seconds;
    optimal += optimal_s;
  }
  Families ratio = {
      MakeFamily("addend_efficiency_ratio",
                 "The shortest time possible for the last 20 rounds, by the time that "
                 "they took. Absent before the first, and without known bandwidths.",
                 MetricType::Gauge, std::vector<ClientMetric>())};
  if (took > 0) ratio[0].metric.push_back(MakeValue(node, optimal / took, MetricType::Gauge));
  families->push_back(std::move(ratio[0]));
}

void AppendParts(const AgentNumbers& n, const MetricLabels& node, Families* families) {
  std::vector<ClientMetric> parts;
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    MetricLabels labels = node;
    labels["part"] = kPartNames[i];
    parts.push_back(MakeValue(labels, n.parts[i]));
  }
  families->push_back(MakeFamily(
      "addend_round_part_seconds",
      "Parts of a partition's way through a round. intra_node: from the first local rank's call "
      "until it is ready to be sent; queue: until its first byte is; push: until its last one is; "
      "sum: until the result begins to come (the other nodes, and the addition); pull: until it is "
      "there.",
      MetricType::Histogram, std::move(parts)));
}

void AppendTraffic(const v1::GetAgentResponse& agent, Families* families) {
  const v1::Traffic& traffic = agent.traffic();
  double tcp = 0, rdma = 0, shm = 0;
  for (const v1::LinkInfo& link : agent.links()) {
    if (!link.connected()) continue;
    tcp += link.transport() == "tcp";
    rdma += link.transport() == "rdma";
    shm += link.transport() == "shm";
  }
  families->push_back(MakeFamily(
      "addend_agent_network_bytes_total",
      "Bytes on the sockets between the agent and the summation servers, headers included.",
      MetricType::Counter,
      {{"sent", Number(traffic.network_bytes_sent())},
       {"received", Number(traffic.network_bytes_received())}},
      "direction"));
  families->push_back(MakeFamily(
      "addend_agent_local_bytes_total",
      "Payload bytes that passed to summation servers of this machine without a network.",
      MetricType::Counter, {{"", Number(traffic.local_bytes())}}));
  families->push_back(MakeFamily("addend_agent_copied_bytes_total",
                                 "Payload bytes that the agent copied in user space.",
                                 MetricType::Counter, {{"", Number(traffic.copied_bytes())}}));
  families->push_back(MakeFamily(
      "addend_agent_links",
      "Links to the shards of other processes' summation servers that are open, by transport.",
      MetricType::Gauge, {{"tcp", tcp}, {"rdma", rdma}, {"shm", shm}}, "transport"));
  families->push_back(MakeFamily("addend_agent_rdma_fallbacks_total",
                                 "Links that were tried over TCP because RDMA had failed.",
                                 MetricType::Counter, {{"", Number(agent.rdma_fallbacks())}}));
}

void AppendQueues(const AgentNumbers& n, const MetricLabels& job, Families* families) {
  families->push_back(Directions("addend_agent_payload_bytes_total",
                                 "Payload bytes of contributions (out) and results (in).", job,
                                 n.bytes_out, n.bytes_in));
  families->push_back(Directions("addend_agent_partitions_total",
                                 "Contributions (out) and results (in) of partitions.", job,
                                 n.partitions_out, n.partitions_in));
  families->push_back(Labelled("addend_agent_resent_partitions_total",
                               "Contributions that were sent again: asked for by a server that had "
                               "no room for them, or because of a lost link or server.",
                               MetricType::Counter, job, Number(n.partitions_resent)));
  families->push_back(Labelled("addend_agent_gpudirect_bytes_total",
                               "Payload bytes of contributions that were handed to a NIC to be "
                               "read from a GPU's memory (--gpudirect).",
                               MetricType::Counter, job, Number(n.direct_bytes)));
  families->push_back(MakeFamily("addend_agent_queued_partitions",
                                 "Contributions and other frames that wait for a link's turn.",
                                 MetricType::Gauge, {{"", Number(n.queued)}}));
  families->push_back(MakeFamily(
      "addend_agent_send_credit_bytes",
      "What may be handed to the open links before anything of it has been acknowledged.",
      MetricType::Gauge, {{"", Number(n.credit_bytes)}}));
}

void AppendState(const v1::GetAgentResponse& agent, const AgentNumbers& n,
                 uint64_t memory_limit_bytes, Families* families) {
  double connected = 0;
  for (const v1::TrainerInfo& trainer : agent.trainers()) connected += trainer.connected();
  families->push_back(MakeFamily("addend_agent_trainers",
                                 "Trainers of this node that are connected.", MetricType::Gauge,
                                 {{"", connected}}));
  families->push_back(MakeFamily("addend_agent_open_rounds",
                                 "Rounds that a local rank has pushed and that have no result yet.",
                                 MetricType::Gauge, {{"", Number(agent.open_rounds())}}));
  families->push_back(MakeFamily("addend_agent_oldest_open_round_seconds",
                                 "Since the first push of the oldest of these rounds.",
                                 MetricType::Gauge, {{"", n.oldest_open_s}}));
  families->push_back(MakeFamily("addend_agent_shared_memory_bytes",
                                 "Size of the segments shared with the trainers.",
                                 MetricType::Gauge, {{"", Number(agent.shared_memory_bytes())}}));
  std::vector<ClientMetric> limit;
  if (memory_limit_bytes != 0) {
    limit.push_back(MakeValue({}, Number(memory_limit_bytes), MetricType::Gauge));
  }
  families->push_back(MakeFamily("addend_agent_memory_limit_bytes",
                                 "The memory limit of the agent's container. Absent without one.",
                                 MetricType::Gauge, std::move(limit)));
  families->push_back(MakeFamily("addend_agent_plan_changes_total",
                                 "Plan versions that the agent has followed.", MetricType::Counter,
                                 {{"", Number(n.plan_changes)}}));
}

}  // namespace

std::vector<MetricFamily> AgentMetrics::Collect() const {
  return FamiliesOf(agent_->Snapshot(), agent_->Numbers(), ReadMemory().limit_bytes);
}

std::vector<MetricFamily> AgentMetrics::FamiliesOf(const v1::GetAgentResponse& agent,
                                                   const AgentNumbers& numbers,
                                                   uint64_t memory_limit_bytes) {
  const MetricLabels job = {{"job_name", agent.job()}};
  MetricLabels node = job;
  node["node"] = std::to_string(agent.node_rank());
  Families families;
  AppendRounds(numbers, node, &families);
  AppendParts(numbers, node, &families);
  AppendTraffic(agent, &families);
  AppendQueues(numbers, job, &families);
  AppendState(agent, numbers, memory_limit_bytes, &families);
  std::vector<ClientMetric> nonfinite;
  const uint64_t first_rank = uint64_t{agent.node_rank()} * numbers.nonfinite.size();
  for (size_t local = 0; local < numbers.nonfinite.size(); ++local) {
    MetricLabels rank = job;
    rank["rank"] = std::to_string(first_rank + local);
    nonfinite.push_back(MakeValue(rank, Number(numbers.nonfinite[local]), MetricType::Counter));
  }
  families.push_back(MakeFamily("addend_nonfinite_partitions_total",
                                "Contributions to partitions in which a rank pushed an infinity or "
                                "a NaN, by the rank.",
                                MetricType::Counter, std::move(nonfinite)));
  families.push_back(Labelled(
      "addend_nonfinite_results_total",
      "Results of partitions with an infinity or a NaN; more than all ranks pushed: sums overflow.",
      MetricType::Counter, node, Number(numbers.nonfinite_results)));
  families.push_back(Labelled(
      "addend_trainer_spin_seconds_total",
      "Processor time that the node's trainers have spent looking for results before they slept "
      "(ADDEND_SPIN_US). They give way to any other work.",
      MetricType::Counter, node, numbers.spun_s));
  families.push_back(Labelled(
      "addend_agent_spin_seconds_total",
      "Processor time that the agent's thread has spent looking for work before it slept (--spin). "
      "It gives way to any other work.",
      MetricType::Counter, node, numbers.own_spun_s));
  families.push_back(Labelled("addend_agent_plan_version",
                              "Version of the plan that the agent follows.", MetricType::Gauge, job,
                              Number(agent.plan_version())));
  std::map<std::string, uint64_t> by_cause = numbers.failures;
  for (const FailureTraits& traits : kFailureTable) by_cause.try_emplace(std::string(traits.cause));
  std::vector<std::pair<std::string, double>> failures;
  for (const auto& [cause, count] : by_cause) failures.push_back({cause, Number(count)});
  families.push_back(MakeFamily("addend_agent_failures_total",
                                "Generations of the job that have failed, by cause.",
                                MetricType::Counter, std::move(failures), "cause"));
  return families;
}

}  // namespace addend
