#include "tools/addendctl/network_command.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/options/host_port.h"
#include "lib/rpc/client.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"
#include "tools/addendctl/ask.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

std::string OrDash(double value, const std::string& text) { return value > 0 ? text : "-"; }

std::string LatencyText(double seconds) {
  return OrDash(seconds, absl::StrFormat("%.0f us", seconds * 1e6));
}

std::string BandwidthText(double bps) { return OrDash(bps, FormatBandwidth(bps)); }

// "2.1": the second group, and the first within it.
std::string GroupName(const v1::NetworkHost& host) {
  std::vector<uint32_t> first;
  for (const uint32_t group : host.groups()) first.push_back(group + 1);
  return first.empty() ? "-" : absl::StrJoin(first, ".");
}

std::string HostTable(const v1::GetNetworkResponse& network) {
  Table table({"GROUP", "HOST", "ADDRESS", "PLACE", "MEMBERS"});
  for (const v1::NetworkHost& host : network.hosts()) {
    table.Add({GroupName(host), host.hostname(), host.address(),
               host.place().empty() ? "-" : host.place(), absl::StrJoin(host.members(), ", ")});
  }
  return table.ToString();
}

std::string KindName(int shared, uint32_t levels) {
  if (levels == 0) return "any two hosts";
  if (shared == 0) return "hosts of different groups";
  if (static_cast<uint32_t>(shared) == levels) return "hosts of a group";
  return absl::StrFormat("hosts that share %d of %d groups", shared, levels);
}

std::string KindTable(const v1::GetNetworkResponse& network) {
  Table table({"BETWEEN", "MEASURED", "ROUND TRIP", "BANDWIDTH"});
  for (int i = 0; i < network.kinds_size(); ++i) {
    const v1::NetworkKind& kind = network.kinds(i);
    table.Add({KindName(i, network.levels()), absl::StrFormat("%d pairs", kind.pairs()),
               LatencyText(kind.latency_s()), BandwidthText(kind.bandwidth_bps())});
  }
  return table.ToString();
}

std::string Headline(const v1::GetNetworkResponse& network) {
  if (network.hosts().empty()) {
    return "No member has an address that others could measure: in a cluster on one machine there "
           "is no network.\n";
  }
  const char* const by = network.source() == v1::GetNetworkResponse::TOLD ? "as they were told"
                         : network.source() == v1::GetNetworkResponse::MEASURED
                             ? "as measured"
                             : "not measured yet";
  if (network.levels() == 0) {
    return absl::StrFormat("%d hosts, no groups that are nearer to each other (%s).\n",
                           network.hosts_size(), by);
  }
  std::set<std::vector<uint32_t>> groups;
  for (const v1::NetworkHost& host : network.hosts()) {
    groups.insert({host.groups().begin(), host.groups().end()});
  }
  return absl::StrFormat("%d hosts in %d groups (%s).\n", network.hosts_size(), groups.size(), by);
}

std::string SlowTable(const v1::GetNetworkResponse& network) {
  Table table({"SLOW", "TO", "ROUND TRIP", "TYPICAL", "BANDWIDTH", "TYPICAL"});
  for (const v1::SlowNetworkLink& link : network.slow()) {
    table.Add({link.from(), link.to().empty() ? "most hosts" : link.to(),
               LatencyText(link.latency_s()), LatencyText(link.typical_latency_s()),
               BandwidthText(link.bandwidth_bps()), BandwidthText(link.typical_bandwidth_bps())});
  }
  return table.ToString();
}

struct RankedHost {
  std::string hostname;
  std::string address;
  uint32_t node_rank = 0;  // that it has now
};

// The job's hosts in the network's order; those that it does not have come last.
std::vector<RankedHost> Ordered(const v1::JobStatus& job, const v1::GetNetworkResponse& network) {
  std::map<std::string, int> place;
  for (const v1::NetworkHost& host : network.hosts()) {
    place.emplace(host.address(), static_cast<int>(place.size()));
  }
  std::vector<std::pair<int, RankedHost>> order;
  for (const v1::NodeStatus& node : job.nodes()) {
    const auto address = ParseHostPort(node.control_address());
    const std::string host = address.ok() ? address->host : node.control_address();
    const auto found = place.find(host);
    order.push_back({found == place.end() ? static_cast<int>(place.size()) : found->second,
                     {node.hostname(), host, node.node_rank()}});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RankedHost> hosts;
  for (auto& [at, host] : order) hosts.push_back(std::move(host));
  return hosts;
}

std::string Hostfile(const std::vector<RankedHost>& hosts, uint32_t slots) {
  std::string text;
  for (const RankedHost& host : hosts) {
    text += absl::StrFormat("%s slots=%d\n", host.hostname, slots);
  }
  return text;
}

std::string Torchrun(const std::vector<RankedHost>& hosts, uint32_t slots) {
  std::string text;
  for (size_t i = 0; i < hosts.size(); ++i) {
    text += absl::StrFormat("%s --nnodes=%d --nproc-per-node=%d --node-rank=%d\n",
                            hosts[i].hostname, hosts.size(), slots, i);
  }
  return text;
}

std::string Rankfile(const std::vector<RankedHost>& hosts, uint32_t slots) {
  std::string text;
  for (size_t i = 0; i < hosts.size() * slots; ++i) {
    text += absl::StrFormat("rank %d=%s slot=%d\n", i, hosts[i / slots].hostname, i % slots);
  }
  return text;
}

std::string RanksJson(const std::vector<RankedHost>& hosts, uint32_t slots) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (size_t i = 0; i < hosts.size(); ++i) {
    json.push_back({{"node_rank", i},
                    {"hostname", hosts[i].hostname},
                    {"address", hosts[i].address},
                    {"slots", slots},
                    {"present_node_rank", hosts[i].node_rank}});
  }
  return json.dump() + "\n";
}

}  // namespace

absl::StatusOr<v1::GetNetworkResponse> AskNetwork(const std::string& scheduler,
                                                  absl::Duration timeout) {
  v1::GetNetworkResponse network;
  ADDEND_RETURN_IF_ERROR(Explained(scheduler, CallAny(scheduler, [&](const auto& channel) {
                                     grpc::ClientContext context;
                                     SetDeadline(&context, timeout);
                                     return v1::Scheduler::NewStub(channel)->GetNetwork(
                                         &context, {}, &network);
                                   })));
  MakePrintable(&network);
  return network;
}

std::string NetworkText(const v1::GetNetworkResponse& network) {
  std::string text = Headline(network);
  if (network.hosts().empty()) return text;
  absl::StrAppend(&text, "\n", HostTable(network));
  if (network.pairs() > 0) absl::StrAppend(&text, "\n", KindTable(network));
  if (!network.slow().empty()) absl::StrAppend(&text, "\n", SlowTable(network));
  return text;
}

absl::StatusOr<std::string> RanksText(const v1::GetStatusResponse& status,
                                      const v1::GetNetworkResponse& network, const std::string& job,
                                      const std::string& format) {
  const auto found = std::find_if(status.jobs().begin(), status.jobs().end(),
                                  [&](const v1::JobStatus& one) { return one.name() == job; });
  if (found == status.jobs().end()) {
    return WithKind(absl::NotFoundError(absl::StrFormat(
                        "there is no job '%s': addendctl jobs lists the jobs, and its agents have "
                        "to run while their hosts are put in order",
                        job)),
                    FailureKind::kInvalid);
  }
  const std::vector<RankedHost> hosts = Ordered(*found, network);
  const uint32_t slots = found->settings().local_size();
  if (format == "hostfile") return Hostfile(hosts, slots);
  if (format == "torchrun") return Torchrun(hosts, slots);
  if (format == "rankfile") return Rankfile(hosts, slots);
  if (format == "json") return RanksJson(hosts, slots);
  return absl::InvalidArgumentError(
      absl::StrFormat("--format=%s is unknown: use hostfile, torchrun, rankfile or json", format));
}

}  // namespace addend
