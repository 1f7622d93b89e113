#include "tests/fuzz/one_node.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lib/auth/token.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "tests/fuzz/check.h"

namespace addend::fuzz {
namespace {

constexpr JobId kJob(1);
constexpr ServerId kServer(1);
constexpr char kKey[] = "the key of the job";
constexpr int64_t kExpires = 4'102'444'800;  // in 2100

v1::NodeToken TokenOf(uint32_t generation) {
  v1::NodeToken token;
  token.set_expires_unix_s(kExpires);
  token.set_secret(std::string(
      auth::TextOf(auth::TokenSecret(auth::BytesOf(kKey), {.job = kJob,
                                                           .generation = Generation(generation),
                                                           .node = NodeId(0),
                                                           .expires_unix_s = kExpires}))));
  return token;
}

std::optional<Topology> SomeMachine() {
  auto machine = ReadTopology(ADDEND_FIXTURES "/paper-nvlink.xml");
  FUZZ_CHECK(machine.ok(), "the fixture is a topology");
  return *std::move(machine);
}

}  // namespace

OneNode::OneNode(const std::string& socket) {
  const auto network = MakeInprocNetwork();
  agent_ = *Agent::Create({.job = "job",
                           .local_size = kLocalSize,
                           .incarnation = Incarnation(1),
                           .socket = socket,
                           .topology = SomeMachine(),
                           .gpudirect = true},
                          network);
  engine_ = *Engine::Create(
      {.memory_limit_bytes = 1 << 20,
       .incarnation = Incarnation(2),
       .network = network,
       .external_slots = [slots = agent_->result_slots()](JobId, Generation generation,
                                                          const std::string& name) {
         return slots->Find(generation, name);
       }});
  FUZZ_CHECK(engine_->ListenInproc().ok(), "nobody else listens");
  v1::RegisterNodeResponse registration;
  registration.set_job_id(kJob.value());
  registration.set_generation(0);
  *registration.mutable_token() = TokenOf(0);
  registration.set_lease_s(5);
  agent_->Begin(registration, kServer, this);
}

OneNode::~OneNode() {
  // Each end of an in-process link posts to the other end's loop. A generation without a server
  // has no link, and the agent opens none.
  ++generation_;
  v1::NodeUpdate update = Update(v1::FORMING);
  update.set_full(true);
  agent_->OnUpdate(update);
  Settle();
  agent_->End();
  engine_.reset();
  agent_.reset();
}

v1::NodeUpdate OneNode::Update(v1::JobState state) const {
  v1::NodeUpdate update;
  update.set_generation(generation_);
  update.set_state(state);
  return update;
}

void OneNode::BeginGeneration() {
  ++generation_;
  engine_->SetJob({.id = kJob,
                   .generation = Generation(generation_),
                   .key = kKey,
                   .num_nodes = 1,
                   .local_size = kLocalSize});
  v1::NodeUpdate update = Update(v1::FORMING);
  update.set_full(true);
  *update.mutable_token() = TokenOf(generation_);
  v1::ServerInfo* const server = update.add_servers();
  server->set_server_id(kServer.value());
  server->set_shards(1);
  server->set_colocated(true);
  agent_->OnUpdate(update);
  agent_->Snapshot();
  tensors_.clear();
}

void OneNode::Settle() {
  for (int i = 0; i < 2; ++i) {
    agent_->Snapshot();
    engine_->links();
  }
  agent_->Snapshot();
}

void OneNode::Answer(const v1::ReportTrainersRequest& request) {
  if (request.generation() != generation_ || request.initialised() < kLocalSize) return;
  agent_->OnUpdate(Update(v1::READY));
}

void OneNode::Answer(const v1::ReportFailureRequest& request) {
  v1::NodeUpdate update = Update(v1::FAILED);
  update.set_generation(request.generation());
  update.set_reason(request.reason());
  update.set_exit_code(request.exit_code());
  update.set_failed_kind(request.kind());
  agent_->OnUpdate(update);
}

// Plans the tensor in up to three partitions.
void OneNode::Answer(const v1::DeclareRequest& request) {
  const v1::TensorDescriptor& tensor = request.tensors(0);
  v1::NodeUpdate update = Update(v1::READY);
  update.set_generation(request.generation());
  TensorSpec spec;
  spec.id = TensorId(++last_tensor_);
  spec.name = tensor.name();
  spec.dtype = static_cast<DType>(tensor.dtype());
  spec.op = static_cast<ReduceOp>(tensor.op());
  spec.elements = 1;
  for (const int64_t dimension : tensor.shape()) spec.elements *= static_cast<uint64_t>(dimension);
  spec.partition_elements = std::max<uint64_t>(1, (spec.elements + 2) / 3);
  for (uint32_t i = 0; spec.FirstElement(i) < spec.elements; ++i) {
    spec.partitions.push_back(i);
    spec.shards.push_back(0);
    spec.versions.emplace_back();
    spec.handed_over.push_back(false);
  }
  absl::Status status = absl::ResourceExhaustedError("it is too large");
  if (spec.elements * SizeOf(spec.dtype) <= kTensorBytesMost) {
    status = engine_->Reserve(kJob, spec);
  }
  if (!status.ok()) {
    v1::TensorError* const error = update.add_errors();
    error->set_name(tensor.name());
    const ToldFailure told = TellFailure(FailureKind::kResources);
    error->set_kind(told.name);
    error->set_exit_code(told.exit_status);
    error->set_message(Message(status));
    return agent_->OnUpdate(update);
  }
  tensors_[tensor.name()] = spec.id.value();
  v1::TensorPlan* const plan = update.add_tensors();
  plan->set_tensor_id(spec.id.value());
  *plan->mutable_tensor() = tensor;
  plan->set_partition_elements(spec.partition_elements);
  for (size_t i = 0; i < spec.partitions.size(); ++i) {
    plan->add_servers(kServer.value());
    plan->add_shards(0);
  }
  agent_->OnUpdate(update);
}

void OneNode::Answer(const v1::UndeclareRequest& request) {
  const auto node = tensors_.extract(request.names(0));
  if (node.empty() || request.generation() != generation_) return;
  engine_->Release(kJob, TensorId(node.mapped()));
  v1::NodeUpdate update = Update(v1::READY);
  update.add_removed(node.mapped());
  agent_->OnUpdate(update);
}

}  // namespace addend::fuzz
