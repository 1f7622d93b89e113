#include "lib/server/engine_metrics.h"

#include "lib/telemetry/metrics.h"

namespace addend {

std::vector<prometheus::MetricFamily> EngineMetrics::Collect() const {
  using prometheus::MetricType;
  const EngineStats s = engine_->stats();
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
      MakeFamily("addend_summation_memory_bytes",
                 "Accumulators and early contributions under the memory limit: now and the highest "
                 "so far.",
                 MetricType::Gauge,
                 {{"used", d(s.memory_used_bytes)}, {"peak", d(s.memory_peak_bytes)}}, "state"),
  };
}

}  // namespace addend
