#include "tools/addendctl/status_table.h"

#include "absl/strings/str_format.h"
#include "lib/base/units.h"
#include "lib/status/status_json.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

std::string BandwidthCell(double bps) { return bps > 0 ? FormatBandwidth(bps) : "-"; }
std::string TextCell(const std::string& text) { return text.empty() ? "-" : text; }
std::string SizeCell(uint64_t bytes) { return FormatSize(static_cast<double>(bytes)); }
std::string Seen(double seconds) { return FormatSeconds(seconds) + " ago"; }

std::string MemoryCell(const v1::ServerStatus& server) {
  const std::string used = SizeCell(server.memory_used_bytes());
  return server.memory_limit_bytes() == 0
             ? used
             : absl::StrFormat("%s of %s", used, SizeCell(server.memory_limit_bytes()));
}

std::string Role(const v1::ServerStatus& server) {
  return server.colocated() ? absl::StrFormat("node %d of %s", server.node_rank(), server.job())
                            : "CPU server";
}

const v1::ServerStatus* FindServer(const v1::GetStatusResponse& status, uint32_t server_id) {
  for (const auto& server : status.servers()) {
    if (server.server_id() == server_id) return &server;
  }
  return nullptr;
}

std::string ServersText(const v1::GetStatusResponse& status) {
  Table table({"SERVER", "ROLE", "HOST", "SHARDS", "BANDWIDTH", "MEMORY", "SENT", "RECEIVED",
               "SUMMED", "OF ALL", "SEEN", "ACTIVITY"});
  for (const auto& server : status.servers()) {
    const auto& traffic = server.traffic();
    table.Add({std::to_string(server.server_id()), Role(server), TextCell(server.hostname()),
               std::to_string(server.shards()), BandwidthCell(server.bandwidth_bps()),
               MemoryCell(server), SizeCell(traffic.network_bytes_sent()),
               SizeCell(traffic.network_bytes_received()), SizeCell(traffic.payload_bytes_summed()),
               FormatPercent(TrafficShare(status, server)), Seen(server.last_seen_s()),
               server.draining() ? "draining" : TextCell(server.activity())});
  }
  return table.empty() ? "No summation servers.\n" : table.ToString();
}

std::string JobLine(const v1::JobStatus& job) {
  std::string line = absl::StrFormat("Job %s: %s", job.name(), StateName(job.state()));
  if (!job.reason().empty()) line += absl::StrFormat(" (%s)", job.reason());
  line += absl::StrFormat(", generation %d, %d nodes with %d ranks each, %d tensors of %s",
                          job.generation(), job.settings().num_nodes(), job.settings().local_size(),
                          job.tensors(), SizeCell(job.tensor_bytes()));
  if (job.t_opt_s() > 0) line += absl::StrFormat(", t_opt %s", FormatSeconds(job.t_opt_s()));
  const bool encoded = job.contribution_ratio() < 1 || job.result_ratio() < 1;
  if (encoded && job.t_opt_encoded_s() > 0) {
    line +=
        absl::StrFormat(", encoded %s (contributions %s, results %s of their bytes)",
                        FormatSeconds(job.t_opt_encoded_s()),
                        FormatPercent(job.contribution_ratio()), FormatPercent(job.result_ratio()));
  }
  return line + "\n";
}

// Formats the job's shares of the plan.
std::string SharesText(const v1::GetStatusResponse& status, const v1::JobStatus& job) {
  Table table({"SERVER", "ROLE", "TARGET", "ASSIGNED"});
  for (const auto& share : job.shares()) {
    const v1::ServerStatus* server = FindServer(status, share.server_id());
    table.Add({std::to_string(share.server_id()), server == nullptr ? "gone" : Role(*server),
               FormatPercent(share.share()), FormatPercent(share.assigned())});
  }
  return table.empty() ? "" : table.ToString(/*indent=*/2);
}

size_t Connected(const v1::JobStatus& job) {
  size_t connected = 0;
  for (const auto& node : job.nodes()) connected += node.connected() ? 1 : 0;
  return connected;
}

}  // namespace

std::string StatusText(const v1::GetStatusResponse& status, const std::string& scheduler) {
  std::string text =
      absl::StrFormat("Scheduler %s: version %s, up %s, store %s\n\n", scheduler, status.version(),
                      FormatSeconds(status.uptime_s()), status.store());
  text += ServersText(status) + "\n";
  if (status.jobs().empty()) return text + "No jobs.\n";
  for (const auto& job : status.jobs()) text += JobLine(job) + SharesText(status, job);
  return text;
}

std::string JobsText(const v1::GetStatusResponse& status) {
  Table table({"JOB", "STATE", "GENERATION", "NODES", "LOCAL RANKS", "TENSORS", "SIZE", "PLAN",
               "T_OPT", "UP", "REASON"});
  for (const auto& job : status.jobs()) {
    table.Add({job.name(), StateName(job.state()), std::to_string(job.generation()),
               absl::StrFormat("%d of %d", Connected(job), job.settings().num_nodes()),
               std::to_string(job.settings().local_size()), std::to_string(job.tensors()),
               SizeCell(job.tensor_bytes()), std::to_string(job.plan_version()),
               job.t_opt_s() > 0 ? FormatSeconds(job.t_opt_s()) : "-",
               FormatSeconds(job.uptime_s()), TextCell(job.reason())});
  }
  return table.empty() ? "No jobs.\n" : table.ToString();
}

std::string NodesText(const v1::GetStatusResponse& status) {
  Table table({"JOB", "NODE", "CONNECTED", "HOST", "ADDRESS", "BANDWIDTH", "SENT", "RECEIVED",
               "LINKS", "SEEN", "ACTIVITY"});
  for (const auto& job : status.jobs()) {
    for (const auto& node : job.nodes()) {
      const auto& traffic = node.traffic();
      table.Add({job.name(), std::to_string(node.node_rank()), node.connected() ? "yes" : "no",
                 TextCell(node.hostname()), TextCell(node.control_address()),
                 BandwidthCell(node.bandwidth_bps()), SizeCell(traffic.network_bytes_sent()),
                 SizeCell(traffic.network_bytes_received()), TextCell(node.links()),
                 Seen(node.last_seen_s()), TextCell(node.activity())});
    }
  }
  return table.empty() ? "No nodes.\n" : table.ToString();
}

}  // namespace addend
