// Copies of counters and states into messages.
#include "services/worker_agent/agent_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace addend {
namespace {

constexpr int kMaxOpenListed = 1000;

void FillRounds(const RoundTimes& times, v1::RoundTimes* rounds) {
  rounds->set_rounds(times.seconds.count());
  rounds->set_seconds(static_cast<double>(times.seconds.sum_ns()) * 1e-9);
  rounds->set_optimal_s(times.optimal_s);
  double recent_s = 0, recent_optimal_s = 0;
  for (const auto& [took_s, optimal_s] : times.recent) {
    recent_s += took_s;
    recent_optimal_s += optimal_s;
  }
  rounds->set_recent_s(recent_s);
  rounds->set_recent_optimal_s(recent_optimal_s);
}

void FillWireBytes(const AgentCounters& counters, v1::WireBytes* bytes) {
  bytes->set_contribution_bytes(counters.contribution_bytes);
  bytes->set_contribution_wire_bytes(counters.contribution_wire_bytes);
  bytes->set_result_bytes(counters.result_bytes);
  bytes->set_result_wire_bytes(counters.result_wire_bytes);
}

void ToProto(const PartitionLife& life, v1::PartitionLife* proto) {
  proto->set_tensor_id(life.partition.tensor().value());
  proto->set_partition(life.partition.index());
  proto->set_round(life.round.value());
  proto->set_server_id(life.server.value());
  proto->set_shard(life.shard);
  proto->set_bytes(life.bytes);
  proto->set_last_rank(life.last_rank);
  proto->set_first_call(static_cast<uint64_t>(life.pushes.first_call));
  proto->set_last_call(static_cast<uint64_t>(life.pushes.last_call));
  proto->set_last_push(static_cast<uint64_t>(life.pushes.last_push));
  proto->set_ready(static_cast<uint64_t>(life.times.ready));
  proto->set_first_out(static_cast<uint64_t>(life.times.first_out));
  proto->set_last_out(static_cast<uint64_t>(life.times.last_out));
  proto->set_first_in(static_cast<uint64_t>(life.times.first_in));
  proto->set_last_in(static_cast<uint64_t>(life.times.last_in));
  proto->set_delivered(static_cast<uint64_t>(life.delivered));
}

void FillTrainers(const NodeGeneration& generation, v1::GetAgentResponse* response) {
  const LocalRanks& ranks = generation.ranks();
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    v1::TrainerInfo* const trainer = response->add_trainers();
    trainer->set_local_rank(rank);
    trainer->set_connected(ranks.at(rank) != nullptr);
    if (ranks.at(rank) != nullptr) trainer->set_pid(ranks.at(rank)->pid());
    for (const auto& [number, tensor] : generation.tensors().by_number()) {
      if (tensor->rounds.HasPushed(rank)) trainer->set_open_pushes(trainer->open_pushes() + 1);
    }
  }
}

void FillLinks(const Servers& servers, v1::GetAgentResponse* response) {
  for (const auto& [key, link] : servers.links()) {
    v1::LinkInfo* const info = response->add_links();
    info->set_server_id(key.first);
    info->set_shard(key.second);
    info->set_transport(link->transport().traits().name);
    info->set_reason(link->reason());
    info->set_peer(link->where());
    info->set_connected(link->open());
    info->set_in_flight(static_cast<uint32_t>(link->queued()));
  }
}

void FillPaces(const Servers& servers, v1::HeartbeatRequest* beat) {
  std::map<uint32_t, std::pair<absl::Duration, uint64_t>> served;
  for (const auto& [key, link] : servers.links()) {
    if (link->given_up() || servers.is_colocated(ServerId(key.first))) continue;
    auto& longest = served[key.first];  // of its shards
    longest = std::max(longest, {link->served(), link->services()});
  }
  for (const auto& [server, longest] : served) {
    v1::ServerPace* const pace = beat->add_paces();
    pace->set_server_id(server);
    pace->set_served_s(absl::ToDoubleSeconds(longest.first));
    pace->set_services(longest.second);
  }
}

}  // namespace

v1::Traffic AgentReport::Traffic() const {
  const NodeTransports& transports = context_.transports;
  v1::Traffic traffic;
  traffic.set_network_bytes_sent(transports.tcp->stats().bytes_sent);
  traffic.set_network_bytes_received(transports.tcp->stats().bytes_received);
  if (transports.rdma != nullptr) {
    const TransportStats& rdma = transports.rdma->stats();
    traffic.set_network_bytes_sent(traffic.network_bytes_sent() + rdma.bytes_sent);
    traffic.set_network_bytes_received(traffic.network_bytes_received() + rdma.bytes_received);
  }
  traffic.set_local_bytes(transports.inproc->stats().local_bytes);
  if (transports.shm != nullptr) {
    traffic.set_local_bytes(traffic.local_bytes() + transports.shm->stats().local_bytes);
  }
  traffic.set_copied_bytes(context_.counters->copied_bytes);
  return traffic;
}

std::string AgentReport::Activity(const LocalRanks& ranks) const {
  std::string text = absl::StrFormat("%d of %d trainers connected, %d rounds", ranks.connected(),
                                     ranks.size(), context_.counters->rounds);
  if (context_.job->state != v1::READY) text += "; " + context_.job->reason;
  return text;
}

std::string AgentReport::DescribeLinks(const Servers& servers) {
  std::map<std::string, int> counts;
  std::string why_tcp;
  for (const auto& [key, link] : servers.links()) {
    if (!link->open() || servers.is_colocated(link->server())) continue;
    const std::string& transport = link->transport().traits().name;
    ++counts[transport];
    if (transport == "tcp") why_tcp = link->reason();
  }
  std::vector<std::string> parts;
  for (const auto& [transport, count] : counts) {
    parts.push_back(absl::StrFormat("%d %s", count, transport));
  }
  const std::string text = absl::StrJoin(parts, ", ");
  return why_tcp.empty() ? text : absl::StrFormat("%s (%s)", text, why_tcp);
}

void AgentReport::FillBeat(const NodeGeneration& generation, v1::HeartbeatRequest* beat) const {
  *beat->mutable_traffic() = Traffic();
  beat->set_activity(Activity(generation.ranks()));
  beat->set_links(DescribeLinks(generation.servers()));
  beat->set_generation(context_.identity->generation.value());
  FillRounds(context_.journal->times(), beat->mutable_rounds());
  FillWireBytes(*context_.counters, beat->mutable_wire_bytes());
  beat->set_pause(context_.pulse->question());
  beat->set_decided(generation.state().decided());
  generation.departures().FillBeat(beat);
  generation.stall_report().FillBeat(beat);
  for (const Incidents::Incident& incident : context_.incidents->Take()) {
    v1::Incident* const told = beat->add_incidents();
    told->set_kind(incident.kind);
    told->set_text(incident.text);
    told->set_follows(incident.follows);
    told->set_age_s(static_cast<double>(context_.loop->TraceTime() - incident.at) * 1e-9);
  }
  FillPaces(generation.servers(), beat);
}

void AgentReport::DescribeOpen(const TensorTable& tensors, v1::GetAgentResponse* response) const {
  const absl::Time now = context_.loop->Now();
  for (const auto& [number, tensor] : tensors.by_number()) {
    if (!tensor->rounds.AnyPushed()) continue;
    response->set_open_rounds(response->open_rounds() + 1);
    if (response->open_size() >= kMaxOpenListed) continue;
    v1::OpenTensor* const open = response->add_open();
    open->set_name(tensor->shape.name);
    open->set_round(tensor->rounds.round().value());
    open->set_open_s(absl::ToDoubleSeconds(now - std::min(now, tensor->open.since)));
    for (const uint32_t rank : tensor->rounds.Missing()) open->add_missing(rank);
    open->set_planned(tensor->planned());
  }
}

void AgentReport::DescribeMemory(const TensorTable& tensors, v1::GetAgentResponse* response) const {
  uint64_t bytes = 0;
  for (const auto& [number, tensor] : tensors.by_number()) {
    bytes += tensor->results->memory().size();
    for (const auto& segment : tensor->contributions) {
      if (segment != nullptr) bytes += segment->memory().size();
    }
  }
  response->set_shared_memory_bytes(bytes);
}

v1::GetAgentResponse AgentReport::Snapshot(const NodeGeneration& generation) const {
  const TensorTable& tensors = generation.tensors();
  v1::GetAgentResponse response;
  response.set_job(context_.options->job);
  response.set_node_rank(context_.identity->node.value());
  response.set_generation(context_.identity->generation.value());
  response.set_plan_version(context_.counters->plan_version.value());
  FillTrainers(generation, &response);
  FillLinks(generation.servers(), &response);
  response.set_rdma_fallbacks(context_.counters->rdma_fallbacks);
  response.set_tensors(static_cast<uint32_t>(tensors.by_number().size()));
  DescribeOpen(tensors, &response);
  DescribeMemory(tensors, &response);
  *response.mutable_traffic() = Traffic();
  return response;
}

AgentNumbers AgentReport::Numbers(const NodeGeneration& generation) const {
  const Journal& journal = *context_.journal;
  const AgentCounters& counters = *context_.counters;
  AgentNumbers numbers;
  numbers.rounds = journal.times();
  for (size_t i = 0; i < numbers.parts.size(); ++i) {
    numbers.parts[i] = journal.part(static_cast<Part>(i));
  }
  numbers.partitions_in = journal.partitions();
  numbers.partitions_out = counters.partitions_out;
  numbers.partitions_resent = counters.resent();
  numbers.direct_bytes = counters.direct_bytes;
  numbers.bytes_out = journal.bytes_out();
  numbers.bytes_in = journal.bytes_in();
  for (const auto& [key, link] : generation.servers().links()) {
    numbers.queued += link->queued();
    numbers.credit_bytes += link->credit_bytes();
  }
  const absl::Time now = context_.loop->Now();
  for (const auto& [number, tensor] : generation.tensors().by_number()) {
    const double open_s = absl::ToDoubleSeconds(now - std::min(now, tensor->open.since));
    numbers.oldest_open_s = std::max(numbers.oldest_open_s, open_s);
  }
  numbers.plan_changes = counters.plan_changes;
  numbers.failures = counters.failures;
  numbers.nonfinite = counters.nonfinite;
  numbers.nonfinite_results = counters.nonfinite_results;
  numbers.spun_s = static_cast<double>(counters.spun_us) * 1e-6;
  return numbers;
}

void AgentReport::FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk) const {
  if (job != context_.identity->job) return;
  const Journal& journal = *context_.journal;
  for (const auto& [id, name] : journal.names()) {
    v1::TensorName* const tensor = chunk->add_tensors();
    tensor->set_tensor_id(id.value());
    tensor->set_name(name);
  }
  std::map<TensorId, Round> newest;  // of each tensor; the first that is seen
  journal.lives().NewestFirst([&](const PartitionLife& life) {
    const Round last = newest.emplace(life.partition.tensor(), life.round).first->second;
    if (life.round.value() + rounds > last.value()) ToProto(life, chunk->add_lives());
    return true;
  });
}

}  // namespace addend
