#include "lib/server/summation_member.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lib/member/protocols.h"
#include "lib/rpc/request_bounds.h"

namespace addend {
namespace {

// Of a heartbeat: the scheduler needs one of each job.
constexpr size_t kMostTroubles = 16;

// nullopt: this server cannot send it sums, or does not know where it is.
std::optional<Peer> ToPeer(const v1::ServerInfo& info) {
  const auto common = Common(protocol::kFrame, FramesOf(info.protocols()));
  const auto tcp = std::find_if(info.endpoints().begin(), info.endpoints().end(),
                                [](const auto& endpoint) { return endpoint.transport() == "tcp"; });
  if (!common.has_value() || common->newest < kPartialSumsSince || tcp == info.endpoints().end()) {
    return std::nullopt;
  }
  return Peer{
      .incarnation = Incarnation(info.incarnation()),
      .host = tcp->host(),
      .port = static_cast<uint16_t>(tcp->port()),
      .frame_version = static_cast<uint16_t>(common->newest),
      .name = absl::StrFormat("summation server %d (%s)", info.server_id(), info.hostname())};
}

JobSpec ToJobSpec(const v1::JobReservation& job) {
  JobSpec spec;
  spec.id = JobId(job.job_id());
  spec.generation = Generation(job.generation());
  spec.plan_version = PlanVersion(job.plan_version());
  spec.key = job.key();
  spec.num_nodes = job.num_nodes();
  spec.name = job.job_name();
  spec.local_size = job.local_size();
  for (const uint32_t node : job.lost_nodes()) spec.lost.insert(NodeId(node));
  spec.failed = job.failed();
  for (const v1::ServerInfo& peer : job.peers()) {
    if (const auto known = ToPeer(peer)) spec.peers[ServerId(peer.server_id())] = *known;
  }
  return spec;
}

absl::StatusOr<TensorSpec> ToTensorSpec(const JobSpec& job, const v1::TensorReservation& tensor) {
  const v1::TensorDescriptor& descriptor = tensor.tensor();
  const auto numerics = NumericsOf(descriptor.reduction_tree());
  if (!numerics || *numerics != NumericsIn(job.num_nodes, numerics->wire)) {
    return absl::UnimplementedError(absl::StrFormat(
        "this server does not support the numerics '%s' of tensor '%s' in a job of %d nodes",
        descriptor.reduction_tree(), descriptor.name(), job.num_nodes));
  }
  TensorSpec spec;
  spec.id = TensorId(tensor.tensor_id());
  spec.name = descriptor.name();
  if (!v1::DType_IsValid(descriptor.dtype()) || !v1::ReduceOp_IsValid(descriptor.op())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("this server does not support the element type or operation of tensor '%s'",
                        descriptor.name()));
  }
  spec.dtype = static_cast<DType>(descriptor.dtype());
  spec.op = static_cast<ReduceOp>(descriptor.op());
  spec.wire = numerics->wire;
  if (spec.wire.lossy() && !MayBeLossy(spec.dtype, spec.op)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s' cannot travel as %s", descriptor.name(), ToString(spec.wire)));
  }
  const auto participants = Participants::FromBits(descriptor.participants(), job.ranks());
  if (!participants) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the participants of tensor '%s' are not ranks of its job, which has %d",
                        descriptor.name(), job.ranks()));
  }
  if (!participants->all()) spec.participants = std::make_shared<Participants>(*participants);
  spec.elements = 1;
  for (const int64_t dimension : descriptor.shape()) {
    if (dimension < 0 ||
        __builtin_mul_overflow(spec.elements, static_cast<uint64_t>(dimension), &spec.elements)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor '%s' has no shape that can be summed", descriptor.name()));
    }
  }
  spec.partition_elements = tensor.partition_elements();
  spec.partitions.assign(tensor.partitions().begin(), tensor.partitions().end());
  spec.shards.assign(tensor.shards().begin(), tensor.shards().end());
  spec.versions.resize(spec.partitions.size());
  for (int i = 0; i < tensor.versions_size() && i < tensor.partitions_size(); ++i) {
    spec.versions[i] = PlanVersion(tensor.versions(i));
  }
  spec.handed_over.resize(spec.partitions.size());
  for (int i = 0; i < tensor.handed_over_size() && i < tensor.partitions_size(); ++i) {
    spec.handed_over[i] = tensor.handed_over(i);
  }
  return spec;
}

// The spans of each of the tensor's partitions.
void TakeRelayedSpans(const v1::TensorReservation& tensor, TensorSpec* spec) {
  if (tensor.relayed().empty()) return;
  std::map<uint32_t, std::vector<RelayedSpan>> spans;
  for (const v1::RelayedSpan& one : tensor.relayed()) {
    spans[one.partition()].push_back(
        {.span = {.first = one.first(), .count = one.count()}, .relay = ServerId(one.server())});
  }
  for (const uint32_t partition : spec->partitions) {
    const auto found = spans.find(partition);
    spec->relayed.push_back(found == spans.end() ? nullptr
                                                 : std::make_shared<const std::vector<RelayedSpan>>(
                                                       std::move(found->second)));
  }
}

std::set<uint32_t> IndicesOf(const v1::PartitionSet& set) {
  return {set.partitions().begin(), set.partitions().end()};
}

absl::Status Reserve(Engine* engine, const JobSpec& job, const v1::TensorReservation& tensor) {
  ADDEND_ASSIGN_OR_RETURN(TensorSpec spec, ToTensorSpec(job, tensor));
  TakeRelayedSpans(tensor, &spec);
  return engine->Reserve(job.id, spec);
}

absl::Status Relay(Engine* engine, const JobSpec& job, const v1::RelayReservation& relay) {
  ADDEND_ASSIGN_OR_RETURN(const TensorSpec spec, ToTensorSpec(job, relay.tensor()));
  std::vector<RelayOrder> orders;
  for (const v1::RelayOrder& order : relay.orders()) {
    orders.push_back({.span = {.first = order.first(), .count = order.count()},
                      .first_node = order.first_node(),
                      .before = ServerId(order.before()),
                      .to = ServerId(order.to()),
                      .to_shard = order.to_shard()});
  }
  return engine->Relay(job.id, spec, orders);
}

void Refuse(const v1::JobReservation& job, uint32_t tensor, const absl::Status& why,
            v1::AckReservationRequest* ack) {
  spdlog::warn("refused: {}", Message(why));
  v1::RefusedTensor* refused = ack->add_refused();
  refused->set_job_id(job.job_id());
  refused->set_tensor_id(tensor);
  refused->set_reason(Message(why));
}

}  // namespace

v1::Traffic ToProto(const EngineStats& stats) {
  v1::Traffic traffic;
  traffic.set_network_bytes_sent(stats.network_bytes_sent);
  traffic.set_network_bytes_received(stats.network_bytes_received);
  traffic.set_local_bytes(stats.local_bytes);
  traffic.set_copied_bytes(stats.copied_bytes);
  traffic.set_partitions_sealed(stats.partitions_sealed);
  traffic.set_payload_bytes_summed(stats.payload_bytes_summed);
  return traffic;
}

v1::AckReservationRequest CarryOut(const v1::ServerUpdate& update, Engine* engine) {
  v1::AckReservationRequest ack;
  Engine::Holdings wanted, relayed;
  for (const v1::JobReservation& job : update.jobs()) {
    const JobId id(job.job_id());
    if (job.release_all()) {
      engine->ReleaseJob(id);
      continue;
    }
    const JobSpec spec = ToJobSpec(job);
    const absl::Status fits = engine->CheckJob(spec);
    if (fits.ok()) engine->SetJob(spec);
    for (const uint32_t tensor : job.release_tensors()) engine->Release(id, TensorId(tensor));
    for (const v1::PartitionSet& set : job.release_partitions()) {
      engine->Release(id, TensorId(set.tensor_id()), IndicesOf(set));
    }
    auto& tensors = wanted[id];
    for (const v1::TensorReservation& tensor : job.reserve()) {
      tensors[TensorId(tensor.tensor_id())].insert(tensor.partitions().begin(),
                                                   tensor.partitions().end());
      const absl::Status status = fits.ok() ? Reserve(engine, spec, tensor) : fits;
      if (!status.ok()) Refuse(job, tensor.tensor_id(), status, &ack);
    }
    for (const v1::RelayReservation& relay : job.relay()) {
      const v1::TensorReservation& tensor = relay.tensor();
      relayed[id][TensorId(tensor.tensor_id())].insert(tensor.partitions().begin(),
                                                       tensor.partitions().end());
      const absl::Status status = fits.ok() ? Relay(engine, spec, relay) : fits;
      if (!status.ok()) Refuse(job, tensor.tensor_id(), status, &ack);
    }
    for (const v1::HandOver& order : job.hand_over()) {
      engine->HandOver(id, TensorId(order.partitions().tensor_id()), IndicesOf(order.partitions()),
                       PlanVersion(order.version()));
    }
  }
  if (update.full()) engine->RetainOnly(wanted, relayed);
  ack.set_free_bytes(engine->free_bytes());
  return ack;
}

void AddTroubles(const Engine& engine, v1::HeartbeatRequest* beat) {
  for (const auto& [which, why] : engine.troubles()) {
    if (static_cast<size_t>(beat->troubles_size()) == kMostTroubles) break;
    v1::RelayTrouble* const trouble = beat->add_troubles();
    trouble->set_job_id(which.first.value());
    trouble->set_server_id(which.second.value());
    trouble->set_reason(Shortened(why, kSentenceBytes));
  }
}

absl::StatusOr<std::unique_ptr<SummationMember>> SummationMember::Join(
    const MemberOptions& options, v1::RegisterServerRequest request, Engine* engine) {
  FillVersions(&request);
  request.set_incarnation(engine->incarnation().value());
  request.set_shards(engine->shards());
  std::unique_ptr<SummationMember> member(new SummationMember(engine));
  SummationMember* const raw = member.get();
  ADDEND_ASSIGN_OR_RETURN(
      member->member_, ServerMember::Join(
                           options, std::move(request),
                           [raw](const v1::ServerUpdate& update) { return raw->OnUpdate(update); },
                           [raw](v1::HeartbeatRequest* beat) { raw->OnBeat(beat); }));
  engine->SetServerId(ServerId(member->server_id()));
  return member;
}

v1::AckReservationRequest SummationMember::OnUpdate(const v1::ServerUpdate& update) {
  v1::AckReservationRequest ack = CarryOut(update, engine_);
  Remember(update);
  return ack;
}

void SummationMember::Remember(const v1::ServerUpdate& update) {
  MutexLock lock(&mu_);
  if (update.full()) jobs_.clear();
  for (const v1::JobReservation& job : update.jobs()) {
    if (job.reserve_size() > 0 || job.relay_size() > 0) jobs_.insert(JobId(job.job_id()));
    if (job.release_all()) jobs_.erase(JobId(job.job_id()));
  }
}

// Must not wait for the shards, which may be busy for longer than a lease.
void SummationMember::OnBeat(v1::HeartbeatRequest* beat) const {
  const EngineStats stats = engine_->stats();
  *beat->mutable_traffic() = ToProto(stats);
  beat->set_memory_used_bytes(stats.memory_used_bytes);
  beat->set_activity(absl::StrFormat("%d partitions summed", stats.partitions_sealed));
  for (std::string& text : engine_->TakeMismatches()) {
    v1::Incident* const incident = beat->add_incidents();
    incident->set_kind("audit_mismatch");
    incident->set_text(std::move(text));
  }
  AddTroubles(*engine_, beat);
}

}  // namespace addend
