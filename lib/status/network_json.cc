#include "lib/status/network_json.h"

#include <nlohmann/json.hpp>

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

// null: not measured.
Json Positive(double value) { return value > 0 ? Json(value) : Json(); }

const char* SourceName(v1::GetNetworkResponse::Source source) {
  if (source == v1::GetNetworkResponse::TOLD) return "told";
  return source == v1::GetNetworkResponse::MEASURED ? "measured" : "unknown";
}

Json ToJson(const v1::NetworkHost& host) {
  return {{"address", host.address()},
          {"hostname", host.hostname()},
          {"groups", host.groups()},
          {"place", host.place().empty() ? Json() : Json(host.place())},
          {"members", host.members()}};
}

Json ToJson(const v1::NetworkKind& kind) {
  return {{"pairs", kind.pairs()},
          {"latency_s", Positive(kind.latency_s())},
          {"bandwidth_bps", Positive(kind.bandwidth_bps())}};
}

Json ToJson(const v1::SlowNetworkLink& link) {
  return {{"from", link.from()},
          {"to", link.to().empty() ? Json() : Json(link.to())},
          {"latency_s", Positive(link.latency_s())},
          {"bandwidth_bps", Positive(link.bandwidth_bps())},
          {"typical_latency_s", Positive(link.typical_latency_s())},
          {"typical_bandwidth_bps", Positive(link.typical_bandwidth_bps())}};
}

template <typename Items>
Json ListOf(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(ToJson(item));
  return list;
}

}  // namespace

std::string NetworkJson(const v1::GetNetworkResponse& network) {
  const Json json = {{"source", SourceName(network.source())}, {"levels", network.levels()},
                     {"hosts", ListOf(network.hosts())},       {"kinds", ListOf(network.kinds())},
                     {"slow", ListOf(network.slow())},         {"pairs", network.pairs()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace addend
