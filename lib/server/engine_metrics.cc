#include "lib/server/engine_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

constexpr size_t kRoundsCounted = 10000;

// The roll-call in numbers: for how many partitions each node is waited for.
prometheus::MetricFamily Awaited(const std::vector<OpenRoundInfo>& open) {
  std::map<std::pair<JobId, NodeId>, double> counts;
  for (const OpenRoundInfo& round : open) {
    for (const NodeId node : round.missing) ++counts[{round.job, node}];
  }
  prometheus::MetricFamily family =
      MakeFamily("addend_summation_awaited_contributions",
                 "Contributions to open rounds that have not come, by the node that owes them.",
                 prometheus::MetricType::Gauge, {});
  for (const auto& [who, count] : counts) {
    prometheus::ClientMetric metric;
    metric.label = {{"job_id", std::to_string(who.first.value())},
                    {"node", std::to_string(who.second.value())}};
    metric.gauge.value = count;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

double Oldest(const std::vector<OpenRoundInfo>& open) {
  double oldest = 0;
  for (const OpenRoundInfo& round : open) oldest = std::max(oldest, round.open_s);
  return oldest;
}

}  // namespace

std::vector<prometheus::MetricFamily> EngineMetrics::Collect() const {
  using prometheus::MetricType;
  const EngineStats s = engine_->stats();
  const std::vector<OpenRoundInfo> open = engine_->RollCall(JobId(), kRoundsCounted);
  const auto d = [](uint64_t value) { return static_cast<double>(value); };
  return {
      MakeFamily("addend_summation_network_bytes_total",
                 "Bytes on the data path's sockets of the summation server, headers included.",
                 MetricType::Counter,
                 {{"sent", d(s.network_bytes_sent)}, {"received", d(s.network_bytes_received)}},
                 "direction"),
      MakeFamily("addend_summation_local_bytes_total",
                 "Payload bytes that passed between agent and colocated server by pointer.",
                 MetricType::Counter, {{"", d(s.local_bytes)}}),
      MakeFamily("addend_summation_copied_bytes_total",
                 "Payload bytes that the summation server copied in user space.",
                 MetricType::Counter, {{"", d(s.copied_bytes)}}),
      MakeFamily("addend_summation_partitions_sealed_total", "Results computed.",
                 MetricType::Counter, {{"", d(s.partitions_sealed)}}),
      MakeFamily("addend_summation_payload_bytes_total",
                 "Payload bytes of the contributions summed.", MetricType::Counter,
                 {{"", d(s.payload_bytes_summed)}}),
      MakeFamily("addend_summation_early_contributions_total",
                 "Contributions that came before their turn, by what became of them.",
                 MetricType::Counter, {{"kept", d(s.early_kept)}, {"dropped", d(s.early_dropped)}},
                 "result"),
      MakeFamily("addend_summation_links_rejected_total",
                 "Links closed because of what the peer sent, or refused.", MetricType::Counter,
                 {{"malformed", d(s.links_malformed)}, {"refused", d(s.links_refused)}}, "reason"),
      MakeFamily("addend_summation_async_updates_total",
                 "Updates in asynchronous mode: added, and lost with a server and the nodes that "
                 "had copies of them.",
                 MetricType::Counter,
                 {{"applied", d(s.updates_applied)}, {"lost", d(s.updates_lost)}}, "result"),
      MakeFamily("addend_summation_memory_bytes",
                 "Accumulators and early contributions under the memory limit: now and the highest "
                 "so far.",
                 MetricType::Gauge,
                 {{"used", d(s.memory_used_bytes)}, {"peak", d(s.memory_peak_bytes)}}, "state"),
      MakeFamily("addend_summation_oldest_open_round_seconds",
                 "Since the first contribution of the oldest round that is open.",
                 MetricType::Gauge, {{"", Oldest(open)}}),
      Awaited(open),
  };
}

}  // namespace addend
