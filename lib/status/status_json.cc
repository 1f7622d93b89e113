#include "lib/status/status_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

// v1::RoundTimes.recent_s covers this many rounds, or all rounds if there were fewer.
constexpr uint64_t kRecentRounds = 20;

std::string Dump(const Json& json) {
  // A host name need not be UTF-8; invalid bytes become U+FFFD.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ToJson(const v1::Traffic& traffic) {
  return {{"network_bytes_sent", traffic.network_bytes_sent()},
          {"network_bytes_received", traffic.network_bytes_received()},
          {"local_bytes", traffic.local_bytes()},
          {"copied_bytes", traffic.copied_bytes()},
          {"partitions_sealed", traffic.partitions_sealed()},
          {"payload_bytes_summed", traffic.payload_bytes_summed()}};
}

Json ToJson(const v1::RoundTimes& rounds) {
  return {{"rounds", rounds.rounds()},
          {"seconds", rounds.seconds()},
          {"optimal_s", rounds.optimal_s()},
          {"recent_s", rounds.recent_s()},
          {"recent_optimal_s", rounds.recent_optimal_s()}};
}

Json ToJson(const v1::NodeStatus& node) {
  return {{"node_rank", node.node_rank()},
          {"connected", node.connected()},
          {"hostname", node.hostname()},
          {"control_address", node.control_address()},
          {"incarnation", std::to_string(node.incarnation())},
          {"bandwidth_bps", node.bandwidth_bps()},
          {"last_seen_s", node.last_seen_s()},
          {"activity", node.activity()},
          {"links", node.links()},
          {"rounds", ToJson(node.rounds())},
          {"traffic", ToJson(node.traffic())}};
}

Json Endpoints(const v1::ServerStatus& server) {
  Json endpoints = Json::array();
  for (const auto& endpoint : server.endpoints()) {
    endpoints.push_back({{"transport", endpoint.transport()},
                         {"host", endpoint.host()},
                         {"port", endpoint.port()},
                         {"nic", endpoint.nic()}});
  }
  return endpoints;
}

// The server's shares of its jobs.
Json SharesOf(const v1::GetStatusResponse& status, uint32_t server_id) {
  Json shares = Json::array();
  for (const auto& job : status.jobs()) {
    for (const auto& share : job.shares()) {
      if (share.server_id() != server_id) continue;
      shares.push_back(
          {{"job", job.name()}, {"share", share.share()}, {"assigned", share.assigned()}});
    }
  }
  return shares;
}

Json ToJson(const v1::GetStatusResponse& status, const v1::ServerStatus& server) {
  Json json = {{"server_id", server.server_id()},
               {"incarnation", std::to_string(server.incarnation())},
               {"hostname", server.hostname()},
               {"control_address", server.control_address()},
               {"endpoints", Endpoints(server)},
               {"shards", server.shards()},
               {"bandwidth_bps", server.bandwidth_bps()},
               {"memory_limit_bytes", server.memory_limit_bytes()},
               {"memory_used_bytes", server.memory_used_bytes()},
               {"colocated", server.colocated()}};
  json["job"] = server.colocated() ? Json(server.job()) : Json(nullptr);
  json["node_rank"] = server.colocated() ? Json(server.node_rank()) : Json(nullptr);
  json["last_seen_s"] = server.last_seen_s();
  json["activity"] = server.activity();
  json["draining"] = server.draining();
  json["speed"] = server.speed();
  json["shares"] = SharesOf(status, server.server_id());
  json["traffic_share"] = TrafficShare(status, server);
  json["traffic"] = ToJson(server.traffic());
  return json;
}

Json Settings(const v1::JobSettings& settings) {
  return {{"num_nodes", settings.num_nodes()},
          {"local_size", settings.local_size()},
          {"partition_bytes", settings.partition_bytes()},
          {"on_node_loss", settings.on_node_loss()},
          {"reduction_order", settings.reduction_order()},
          {"stall_timeout_s", settings.stall_timeout_s()},
          {"audit_one_in", settings.audit_one_in()},
          {"intranode", settings.intranode()},
          {"deterministic_intranode", settings.deterministic_intranode()}};
}

// A scheduler of an earlier version tells no ratio: it plans for raw payloads.
double RatioOrRaw(double ratio) { return ratio > 0 ? ratio : 1; }

// The shortest possible time of the last 20 rounds of every node for raw bytes, divided by their
// actual time. Encoded rounds may take less.
std::optional<double> RawOptimumOverTime(const v1::JobStatus& job) {
  double seconds = 0;
  double optimal_s = 0;
  for (const auto& node : job.nodes()) {
    if (node.rounds().recent_optimal_s() <= 0) continue;
    seconds += node.rounds().recent_s();
    optimal_s += node.rounds().recent_optimal_s();
  }
  if (seconds <= 0) return std::nullopt;
  return optimal_s / seconds;
}

Json ToJson(const v1::JobStatus& job) {
  Json json = {{"name", job.name()},
               {"job_id", job.job_id()},
               {"generation", job.generation()},
               {"state", StateName(job.state())},
               {"reason", job.reason()},
               {"settings", Settings(job.settings())},
               {"plan_version", job.plan_version()},
               {"tensors", job.tensors()},
               {"tensor_bytes", job.tensor_bytes()},
               {"uptime_s", job.uptime_s()}};
  json["t_opt_s"] = job.t_opt_s() > 0 ? Json(job.t_opt_s()) : Json(nullptr);
  const std::optional<double> efficiency = EfficiencyOf(job);
  json["efficiency"] = efficiency ? Json(*efficiency) : Json(nullptr);
  json["contribution_ratio"] = RatioOrRaw(job.contribution_ratio());
  json["result_ratio"] = RatioOrRaw(job.result_ratio());
  json["t_opt_encoded_s"] = job.t_opt_encoded_s() > 0 ? Json(job.t_opt_encoded_s()) : Json(nullptr);
  const std::optional<double> encoded = EncodedEfficiencyOf(job);
  json["efficiency_encoded"] = encoded ? Json(*encoded) : Json(nullptr);
  const std::optional<double> round_s = RoundSeconds(job);
  json["round_s"] = round_s ? Json(*round_s) : Json(nullptr);
  json["first_nonfinite"] =
      job.first_nonfinite().empty() ? Json(nullptr) : Json(job.first_nonfinite());
  json["shares"] = Json::array();
  for (const auto& share : job.shares()) {
    json["shares"].push_back({{"server_id", share.server_id()},
                              {"share", share.share()},
                              {"assigned", share.assigned()}});
  }
  json["nodes"] = Json::array();
  for (const auto& node : job.nodes()) json["nodes"].push_back(ToJson(node));
  return json;
}

Json Jobs(const v1::GetStatusResponse& status) {
  Json jobs = Json::array();
  for (const auto& job : status.jobs()) jobs.push_back(ToJson(job));
  return jobs;
}

Json Events(const v1::GetStatusResponse& status) {
  Json events = Json::array();
  for (const auto& event : status.events()) {
    Json json = {{"number", event.number()}, {"unix_s", event.unix_s()}, {"kind", event.kind()}};
    json["job"] = event.job().empty() ? Json(nullptr) : Json(event.job());
    json["text"] = event.text();
    events.push_back(std::move(json));
  }
  return events;
}

}  // namespace

std::string StateName(v1::JobState state) {
  switch (state) {
    case v1::FORMING:
      return "forming";
    case v1::READY:
      return "ready";
    case v1::FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

double TrafficShare(const v1::GetStatusResponse& status, const v1::ServerStatus& server) {
  double all = 0;
  for (const auto& other : status.servers()) {
    all += static_cast<double>(other.traffic().payload_bytes_summed());
  }
  return all == 0 ? 0 : static_cast<double>(server.traffic().payload_bytes_summed()) / all;
}

std::string StatusJson(const v1::GetStatusResponse& status) {
  Json json = {
      {"version", status.version()}, {"uptime_s", status.uptime_s()}, {"store", status.store()}};
  json["servers"] = Json::array();
  for (const auto& server : status.servers()) json["servers"].push_back(ToJson(status, server));
  json["jobs"] = Jobs(status);
  json["now_unix_s"] = status.now_unix_s();
  json["recommended_servers"] = status.recommended_servers();
  json["events"] = Events(status);
  return Dump(json);
}

std::string StandbyJson(std::string_view version, std::string_view leader, double now_unix_s) {
  Json json = {{"version", version}, {"standby", true}};
  json["leader"] = leader.empty() ? Json(nullptr) : Json(leader);
  json["now_unix_s"] = now_unix_s;
  return Dump(json);
}

std::optional<double> EfficiencyOf(const v1::JobStatus& job) {
  const std::optional<double> quotient = RawOptimumOverTime(job);
  if (!quotient) return std::nullopt;
  return std::min(*quotient, 1.0);
}

std::optional<double> EncodedEfficiencyOf(const v1::JobStatus& job) {
  const std::optional<double> quotient = RawOptimumOverTime(job);
  if (!quotient || job.t_opt_s() <= 0 || job.t_opt_encoded_s() <= 0) return std::nullopt;
  return std::min(*quotient * job.t_opt_encoded_s() / job.t_opt_s(), 1.0);
}

std::optional<double> RoundSeconds(const v1::JobStatus& job) {
  double seconds = 0;
  double rounds = 0;
  for (const auto& node : job.nodes()) {
    seconds += node.rounds().recent_s();
    rounds += static_cast<double>(std::min(node.rounds().rounds(), kRecentRounds));
  }
  if (rounds == 0) return std::nullopt;
  return seconds / rounds;
}

std::string JobsJson(const v1::GetStatusResponse& status) { return Dump(Jobs(status)); }

std::string NodesJson(const v1::GetStatusResponse& status) {
  Json nodes = Json::array();
  for (const auto& job : status.jobs()) {
    for (const auto& node : job.nodes()) {
      Json json = {{"job", job.name()}};
      json.update(ToJson(node));
      nodes.push_back(std::move(json));
    }
  }
  return Dump(nodes);
}

}  // namespace addend
