// What the agent tells of itself: to the scheduler, to addendctl and in metrics.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "lib/trace/clock.h"
#include "services/worker_agent/agent.h"

namespace addend {
namespace {

constexpr int kMaxOpenListed = 1000;
constexpr size_t kMaxIncidents = 100;

void Fill(const RoundTimes& times, v1::RoundTimes* rounds) {
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
  proto->set_ready(static_cast<uint64_t>(life.way.ready));
  proto->set_first_out(static_cast<uint64_t>(life.way.first_out));
  proto->set_last_out(static_cast<uint64_t>(life.way.last_out));
  proto->set_first_in(static_cast<uint64_t>(life.way.first_in));
  proto->set_last_in(static_cast<uint64_t>(life.way.last_in));
  proto->set_delivered(static_cast<uint64_t>(life.delivered));
}

}  // namespace

v1::Traffic Agent::traffic() const {
  v1::Traffic traffic;
  traffic.set_network_bytes_sent(tcp_->stats().bytes_sent);
  traffic.set_network_bytes_received(tcp_->stats().bytes_received);
  if (rdma_ != nullptr) {
    const TransportStats& rdma = rdma_->stats();
    traffic.set_network_bytes_sent(traffic.network_bytes_sent() + rdma.bytes_sent);
    traffic.set_network_bytes_received(traffic.network_bytes_received() + rdma.bytes_received);
  }
  traffic.set_local_bytes(inproc_->stats().local_bytes);
  traffic.set_copied_bytes(copied_bytes_);
  return traffic;
}

std::string Agent::Activity() const {
  int connected = 0;
  for (const TrainerLink* trainer : ranks_) connected += trainer != nullptr;
  std::string text = absl::StrFormat("%d of %d trainers connected, %d rounds", connected,
                                     options_.local_size, rounds_);
  if (job_state_ != v1::READY) text += "; " + reason_;
  return text;
}

// "3 rdma, 1 tcp (no RDMA: the server has none)": of the links to other machines.
std::string Agent::DescribeLinks() const {
  std::map<std::string, int> counts;
  std::string why_tcp;
  for (const auto& [key, link] : links_) {
    if (!link->open() || link->server() == colocated_server_) continue;
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

void Agent::FillBeat(v1::HeartbeatRequest* beat) {
  *beat->mutable_traffic() = traffic();
  std::map<uint32_t, std::pair<absl::Duration, uint64_t>> served;
  loop_->Run([&] {
    beat->set_activity(Activity());
    beat->set_links(DescribeLinks());
    beat->set_generation(identity_.generation.value());
    Fill(journal_.times(), beat->mutable_rounds());
    for (const Incident& incident : incidents_) {
      v1::Incident* const told = beat->add_incidents();
      told->set_kind(incident.kind);
      told->set_text(incident.text);
      told->set_age_s(static_cast<double>(TraceNow() - incident.at) * 1e-9);
    }
    incidents_.clear();
    for (const auto& [key, link] : links_) {
      if (link->given_up() || ServerId(key.first) == colocated_server_) continue;
      auto& longest = served[key.first];  // of its shards
      longest = std::max(longest, {link->served(), link->services()});
    }
  });
  for (const auto& [server, longest] : served) {
    v1::ServerPace* pace = beat->add_paces();
    pace->set_server_id(server);
    pace->set_served_s(absl::ToDoubleSeconds(longest.first));
    pace->set_services(longest.second);
  }
}

void Agent::DescribeOpen(v1::GetAgentResponse* response) const {
  const absl::Time now = absl::Now();
  for (const auto& [number, tensor] : by_number_) {
    if (!tensor->rounds.AnyPushed() || response->open_size() >= kMaxOpenListed) continue;
    v1::OpenTensor* open = response->add_open();
    open->set_name(tensor->shape.name);
    open->set_round(tensor->rounds.round().value());
    open->set_open_s(absl::ToDoubleSeconds(now - std::min(now, tensor->open_since)));
    for (const uint32_t rank : tensor->rounds.Missing()) open->add_missing(rank);
    open->set_planned(tensor->planned());
  }
}

v1::GetAgentResponse Agent::Snapshot() {
  v1::GetAgentResponse response;
  loop_->Run([&] {
    response.set_job(options_.job);
    response.set_node_rank(options_.node.value());
    response.set_generation(identity_.generation.value());
    response.set_plan_version(plan_version_.value());
    for (uint32_t rank = 0; rank < options_.local_size; ++rank) {
      v1::TrainerInfo* trainer = response.add_trainers();
      trainer->set_local_rank(rank);
      trainer->set_connected(ranks_[rank] != nullptr);
      if (ranks_[rank] != nullptr) trainer->set_pid(ranks_[rank]->pid());
      for (const auto& [number, tensor] : by_number_) {
        if (tensor->rounds.HasPushed(rank)) trainer->set_open_pushes(trainer->open_pushes() + 1);
      }
    }
    for (const auto& [key, link] : links_) {
      v1::LinkInfo* info = response.add_links();
      info->set_server_id(key.first);
      info->set_shard(key.second);
      info->set_transport(link->transport().traits().name);
      info->set_reason(link->reason());
      info->set_peer(link->where());
      info->set_connected(link->open());
      info->set_in_flight(static_cast<uint32_t>(link->queued()));
    }
    response.set_rdma_fallbacks(rdma_fallbacks_);
    response.set_tensors(static_cast<uint32_t>(by_number_.size()));
    DescribeOpen(&response);
    for (const auto& [number, tensor] : by_number_) {
      if (tensor->rounds.AnyPushed()) response.set_open_rounds(response.open_rounds() + 1);
      uint64_t bytes = tensor->results->memory().size();
      for (const auto& segment : tensor->contributions) bytes += segment->memory().size();
      response.set_shared_memory_bytes(response.shared_memory_bytes() + bytes);
    }
    *response.mutable_traffic() = traffic();
  });
  return response;
}

AgentNumbers Agent::Numbers() {
  AgentNumbers numbers;
  loop_->Run([&] {
    numbers.rounds = journal_.times();
    for (size_t i = 0; i < numbers.parts.size(); ++i) {
      numbers.parts[i] = journal_.part(static_cast<Part>(i));
    }
    numbers.partitions_in = journal_.partitions();
    numbers.partitions_out = push_->entered();
    numbers.partitions_resent = push_->resent();
    numbers.direct_bytes = push_->direct_bytes();
    numbers.bytes_out = journal_.bytes_out();
    numbers.bytes_in = journal_.bytes_in();
    for (const auto& [key, link] : links_) {
      numbers.queued += link->queued();
      numbers.credit_bytes += link->credit_bytes();
    }
    const absl::Time now = absl::Now();
    for (const auto& [number, tensor] : by_number_) {
      const double open_s = absl::ToDoubleSeconds(now - std::min(now, tensor->open_since));
      numbers.oldest_open_s = std::max(numbers.oldest_open_s, open_s);
    }
    numbers.plan_changes = plan_changes_;
    numbers.failures = failures_;
    numbers.nonfinite = nonfinite_;
    numbers.nonfinite_results = nonfinite_results_;
  });
  return numbers;
}

void Agent::FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk) {
  loop_->Run([&] {
    if (job != identity_.job) return;
    for (const auto& [id, name] : journal_.names()) {
      v1::TensorName* const tensor = chunk->add_tensors();
      tensor->set_tensor_id(id.value());
      tensor->set_name(name);
    }
    std::map<TensorId, Round> newest;  // of each tensor; the first that is seen
    journal_.lives().NewestFirst([&](const PartitionLife& life) {
      const Round last = newest.emplace(life.partition.tensor(), life.round).first->second;
      if (life.round.value() + rounds > last.value()) ToProto(life, chunk->add_lives());
      return true;
    });
  });
}

void Agent::NoteIncident(const std::string& kind, std::string text) {
  if (incidents_.size() >= kMaxIncidents) return;
  incidents_.push_back({kind, std::move(text), TraceNow()});
}

}  // namespace addend
