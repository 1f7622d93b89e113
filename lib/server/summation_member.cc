#include "lib/server/summation_member.h"

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/member/protocols.h"

namespace addend {
namespace {

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

std::set<uint32_t> IndicesOf(const v1::PartitionSet& set) {
  return {set.partitions().begin(), set.partitions().end()};
}

absl::Status Reserve(Engine* engine, const JobSpec& job, const v1::TensorReservation& tensor) {
  ADDEND_ASSIGN_OR_RETURN(const TensorSpec spec, ToTensorSpec(job, tensor));
  return engine->Reserve(job.id, spec);
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
  Engine::Holdings wanted;
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
      if (status.ok()) continue;
      spdlog::warn("refused: {}", Message(status));
      v1::RefusedTensor* refused = ack.add_refused();
      refused->set_job_id(job.job_id());
      refused->set_tensor_id(tensor.tensor_id());
      refused->set_reason(Message(status));
    }
    for (const v1::HandOver& order : job.hand_over()) {
      engine->HandOver(id, TensorId(order.partitions().tensor_id()), IndicesOf(order.partitions()),
                       PlanVersion(order.version()));
    }
  }
  if (update.full()) engine->RetainOnly(wanted);
  ack.set_free_bytes(engine->free_bytes());
  return ack;
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
    if (job.reserve_size() > 0) jobs_.insert(JobId(job.job_id()));
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
}

}  // namespace addend
