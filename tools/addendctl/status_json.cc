#include "tools/addendctl/status_json.h"

#include <nlohmann/json.hpp>

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  // A host name need not be UTF-8; what is not becomes U+FFFD.
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

// The server's shares of the jobs that it sums for.
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
          {"stall_timeout_s", settings.stall_timeout_s()}};
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
  return Dump(json);
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
