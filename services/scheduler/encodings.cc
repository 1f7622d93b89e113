// Plans for the bytes on the wire.
#include "services/scheduler/encodings.h"

#include <set>

#include "absl/strings/str_format.h"

namespace addend {

void TakeWireBytes(NodeId node, const v1::HeartbeatRequest& beat, Job* job) {
  JobGeneration& current = job->current;
  if (current.state != v1::READY || Generation(beat.generation()) != current.number) return;
  if (!beat.has_wire_bytes()) return;  // of an older version, which sends raw payloads
  const v1::WireBytes& bytes = beat.wire_bytes();
  current.ratios.Report(node, {.contribution_bytes = bytes.contribution_bytes(),
                               .contribution_wire_bytes = bytes.contribution_wire_bytes(),
                               .result_bytes = bytes.result_bytes(),
                               .result_wire_bytes = bytes.result_wire_bytes()});
}

// Raw bytes of contributions, and of results, of a round of all tensors. A partition may be at the
// colocated server of a node, to which that node sends nothing.
double Encodings::RoundBytes() const {
  double bytes = 0;
  for (const auto& [ranks, loads] : job_.current.loads) {
    const double nodes = ranks.CountNodes(job_.settings.num_nodes(), job_.settings.local_size());
    for (const auto& [server, load] : loads) {
      bytes += static_cast<double>(load.bytes) * (nodes - 1);
    }
  }
  return bytes;
}

void Encodings::Follow() {
  JobGeneration& current = job_.current;
  if (current.state != v1::READY || !current.ratios.HasNews()) return;
  std::set<NodeId> nodes;
  for (const auto& [rank, node] : job_.nodes) {
    if (job_.TakesPart(node)) nodes.insert(rank);
  }
  const auto ratios = current.ratios.Evaluate(nodes, RoundBytes());
  if (!ratios) return;
  current.rebalance = PlanReason::kEncoding;
  current.pace.StartOver(scope_.changes.now());
  scope_.changes.Note(
      event_kind::kPlanned, job_.name,
      absl::StrFormat("job '%s': contributions take %.2g and results %.2g bytes on the wire for "
                      "each byte: its plan counts with that from now on",
                      job_.name, ratios->contributions, ratios->results));
}

}  // namespace addend
