#include "lib/server/engine_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr size_t kRoundsCounted = 10000;

double Number(uint64_t value) { return static_cast<double>(value); }

// The counters of all jobs.
using JobNumbers = std::map<JobId, Engine::JobNumbers>;
template <typename Add>
MetricFamily PerJob(const std::string& name, const std::string& help, MetricType type,
                    const JobNumbers& jobs, Add add) {
  std::vector<ClientMetric> values;
  for (const auto& [id, job] : jobs) add(MetricLabels{{"job_name", job.totals.name}}, job, &values);
  return MakeFamily(name, help, type, std::move(values));
}

void AppendJobs(const JobNumbers& jobs, std::vector<MetricFamily>* families) {
  using Labels = const MetricLabels&;
  using Job = const Engine::JobNumbers&;
  using Values = std::vector<ClientMetric>*;
  families->push_back(
      PerJob("addend_summation_partitions_sealed_total", "Results computed, by job.",
             MetricType::Counter, jobs, [](Labels labels, Job job, Values values) {
               values->push_back(
                   MakeValue(labels, Number(job.totals.partitions_sealed), MetricType::Counter));
             }));
  families->push_back(PerJob(
      "addend_summation_payload_bytes_total", "Payload bytes of the contributions summed, by job.",
      MetricType::Counter, jobs, [](Labels labels, Job job, Values values) {
        values->push_back(MakeValue(labels, Number(job.totals.payload_bytes), MetricType::Counter));
      }));
  families->push_back(
      PerJob("addend_summation_gather_seconds",
             "Time from the first to the last contribution of a partition's round, by job.",
             MetricType::Histogram, jobs, [](Labels labels, Job job, Values values) {
               values->push_back(MakeValue(labels, job.totals.gather));
             }));
  families->push_back(PerJob("addend_summation_sum_seconds",
                             "Time spent adding the contributions of a partition's round, by job.",
                             MetricType::Histogram, jobs,
                             [](Labels labels, Job job, Values values) {
                               values->push_back(MakeValue(labels, job.totals.sum));
                             }));
  families->push_back(PerJob("addend_audits_total",
                             "Partitions of other servers that this server summed again, by job "
                             "and result; abandoned: some contributions did not arrive.",
                             MetricType::Counter, jobs, [](Labels labels, Job job, Values values) {
                               const std::pair<const char*, uint64_t> results[] = {
                                   {"match", job.totals.audits_matched},
                                   {"mismatch", job.totals.audits_mismatched},
                                   {"abandoned", job.totals.audits_abandoned}};
                               for (const auto& [result, count] : results) {
                                 MetricLabels of_result = labels;
                                 of_result["result"] = result;
                                 values->push_back(
                                     MakeValue(of_result, Number(count), MetricType::Counter));
                               }
                             }));
  families->push_back(PerJob(
      "addend_audit_mismatch_total",
      "Audits whose result differs from the bits that a node was given: silent corruption, by job.",
      MetricType::Counter, jobs, [](Labels labels, Job job, Values values) {
        values->push_back(
            MakeValue(labels, Number(job.totals.audits_mismatched), MetricType::Counter));
      }));
  families->push_back(PerJob(
      "addend_summation_delay_seconds_total",
      "Time by which a node's contribution came after all the others', summed over the partitions.",
      MetricType::Counter, jobs, [](Labels labels, Job job, Values values) {
        for (const auto& [node, ns] : job.totals.delay_ns) {
          MetricLabels of_node = labels;
          of_node["node"] = std::to_string(node.value());
          values->push_back(MakeValue(of_node, Number(ns) * 1e-9, MetricType::Counter));
        }
      }));
  families->push_back(
      PerJob("addend_summation_job_memory_bytes",
             "Bytes of the accumulators reserved under the memory limit, by job.",
             MetricType::Gauge, jobs, [](Labels labels, Job job, Values values) {
               values->push_back(MakeValue(labels, Number(job.reserved_bytes), MetricType::Gauge));
             }));
}

// The roll-call as numbers: for how many partitions the server waits for each node.
MetricFamily Awaited(const std::vector<OpenRoundInfo>& open, const JobNumbers& jobs) {
  std::map<std::pair<JobId, NodeId>, double> counts;
  for (const OpenRoundInfo& round : open) {
    for (const NodeId node : round.missing) ++counts[{round.job, node}];
  }
  std::vector<ClientMetric> values;
  for (const auto& [who, count] : counts) {
    const auto job = jobs.find(who.first);
    values.push_back(MakeValue({{"job_name", job == jobs.end() ? "" : job->second.totals.name},
                                {"node", std::to_string(who.second.value())}},
                               count, MetricType::Gauge));
  }
  return MakeFamily("addend_summation_awaited_contributions",
                    "Missing contributions to open rounds, by job and node.", MetricType::Gauge,
                    std::move(values));
}

double Oldest(const std::vector<OpenRoundInfo>& open) {
  double oldest = 0;
  for (const OpenRoundInfo& round : open) oldest = std::max(oldest, round.open_s);
  return oldest;
}

void AppendLinks(const LinkCounts& links, std::vector<MetricFamily>* families) {
  std::vector<std::pair<std::string, double>> counts;
  for (const char* transport : {"tcp", "rdma", "shm", "inproc"}) {
    const auto found = links.by_transport.find(transport);
    counts.push_back({transport, found == links.by_transport.end() ? 0 : Number(found->second)});
  }
  families->push_back(MakeFamily("addend_summation_links",
                                 "Links of nodes to this server's shards, by transport.",
                                 MetricType::Gauge, std::move(counts), "transport"));
  families->push_back(MakeFamily("addend_summation_queued_frames",
                                 "Results and other frames queued for sending to nodes.",
                                 MetricType::Gauge, {{"", Number(links.queued)}}));
}

MetricFamily RejectedLinks(const EngineStats& s) {
  std::vector<std::pair<std::string, double>> by_reason = {
      {"malformed", Number(s.links_malformed)}};
  for (size_t i = 0; i < s.links_refused.size(); ++i) {
    by_reason.emplace_back(kRefusalNames[i], Number(s.links_refused[i]));
  }
  return MakeFamily("addend_summation_links_rejected_total",
                    "Links refused, or closed because of malformed frames, by reason.",
                    MetricType::Counter, std::move(by_reason), "reason");
}

void AppendTotals(const EngineStats& s, std::vector<MetricFamily>* families) {
  const std::vector<MetricFamily> totals = {
      MakeFamily(
          "addend_summation_network_bytes_total",
          "Bytes on the data path's sockets of the summation server, headers included.",
          MetricType::Counter,
          {{"sent", Number(s.network_bytes_sent)}, {"received", Number(s.network_bytes_received)}},
          "direction"),
      MakeFamily("addend_summation_local_bytes_total",
                 "Payload bytes that passed to agents of this machine without a network.",
                 MetricType::Counter, {{"", Number(s.local_bytes)}}),
      MakeFamily("addend_summation_copied_bytes_total",
                 "Payload bytes that the summation server copied in user space.",
                 MetricType::Counter, {{"", Number(s.copied_bytes)}}),
      MakeFamily("addend_summation_early_contributions_total",
                 "Contributions that came before their round was open, by result: kept, or dropped "
                 "and requested again.",
                 MetricType::Counter,
                 {{"kept", Number(s.early_kept)}, {"dropped", Number(s.early_dropped)}}, "result"),
      RejectedLinks(s),
      MakeFamily("addend_summation_spin_seconds_total",
                 "Processor time that the server's shards have spent looking for work before they "
                 "slept (--spin). They give way to any other work.",
                 MetricType::Counter, {{"", s.spun_s}}),
      MakeFamily("addend_summation_async_updates_total",
                 "Updates in asynchronous mode, by result: applied, or lost with a server and the "
                 "nodes that had copies of them.",
                 MetricType::Counter,
                 {{"applied", Number(s.updates_applied)}, {"lost", Number(s.updates_lost)}},
                 "result"),
      MakeFamily("addend_summation_memory_bytes",
                 "Bytes of accumulators and early contributions under the memory limit: at present "
                 "and the highest so far.",
                 MetricType::Gauge,
                 {{"used", Number(s.memory_used_bytes)}, {"peak", Number(s.memory_peak_bytes)}},
                 "state"),
  };
  families->insert(families->end(), totals.begin(), totals.end());
}

}  // namespace

std::vector<MetricFamily> EngineMetrics::Collect() const {
  const std::vector<OpenRoundInfo> open = engine_->RollCall(JobId(), kRoundsCounted);
  const JobNumbers jobs = engine_->job_numbers();
  std::vector<MetricFamily> families;
  AppendTotals(engine_->stats(), &families);
  AppendJobs(jobs, &families);
  AppendLinks(engine_->links(), &families);
  families.push_back(MakeFamily("addend_summation_memory_limit_bytes",
                                "Memory limit of the summation server; 0: no limit.",
                                MetricType::Gauge, {{"", Number(engine_->memory_limit_bytes())}}));
  families.push_back(MakeFamily(
      "addend_summation_job_memory_limit_bytes",
      "Memory limit of each job on the summation server; 0: only the server's own limit.",
      MetricType::Gauge, {{"", Number(engine_->job_memory_limit_bytes())}}));
  families.push_back(MakeFamily(
      "addend_summation_oldest_open_round_seconds",
      "Age of the oldest open round, from its first contribution; 0 without open rounds.",
      MetricType::Gauge, {{"", Oldest(open)}}));
  families.push_back(Awaited(open, jobs));
  return families;
}

}  // namespace addend
