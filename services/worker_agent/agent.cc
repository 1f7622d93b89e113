// The agent's life cycle, and the way from other threads to its core loop.
#include "services/worker_agent/agent.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/options/host_port.h"
#include "services/worker_agent/trainer_port.h"

namespace addend {
namespace {

constexpr absl::Duration kBetweenChecks = absl::Seconds(1);

auth::Token FromProto(const v1::NodeToken& proto) {
  auth::Token token{.expires_unix_s = proto.expires_unix_s()};
  if (proto.secret().size() == token.secret.size()) {
    const Bytes secret = auth::BytesOf(proto.secret());
    std::copy(secret.begin(), secret.end(), token.secret.begin());
  }
  return token;
}

// The node's proof in the gRPC conversation before a link over RDMA. The link itself begins as
// every other link.
v1::LinkAccess AccessFor(const NodeIdentity& self, const v1::LinkChallenge& challenge,
                         uint32_t shard) {
  auth::LinkTerms terms{.claim = self.claim(),
                        .node = self.incarnation,
                        .server = Incarnation(challenge.incarnation()),
                        .shard = shard};
  const Bytes nonce = auth::BytesOf(challenge.nonce());
  std::copy_n(nonce.begin(), std::min(nonce.size(), terms.server_nonce.size()),
              terms.server_nonce.begin());
  v1::LinkAccess access;
  access.set_job_id(self.job.value());
  access.set_generation(self.generation.value());
  access.set_node_rank(self.node.value());
  access.set_incarnation(self.incarnation.value());
  access.set_expires_unix_s(self.token.expires_unix_s);
  access.set_proof(
      std::string(auth::TextOf(auth::ProofOf(auth::Side::kNode, self.token.secret, terms))));
  return access;
}

}  // namespace

Agent::Lasting::Lasting(const NodeOptions& options)
    : job{.state = v1::FORMING, .reason = "the agent has not reached the scheduler yet"},
      counters(options.local_size),
      encoder(options.wire_encoding),
      convoy(SendLimitsFor(options.bandwidth_bps)) {}

Agent::Agent(Options options, std::shared_ptr<InprocNetwork> network, Surroundings surroundings)
    : options_(std::move(options)),
      surroundings_(std::move(surroundings)),
      network_(std::move(network)),
      lasting_(options_) {}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options,
                                                     std::shared_ptr<InprocNetwork> network,
                                                     Surroundings surroundings) {
  std::unique_ptr<Agent> agent(
      new Agent(std::move(options), std::move(network), std::move(surroundings)));
  ADDEND_ASSIGN_OR_RETURN(agent->loop_, agent->surroundings_.machine->StartLoop("agent"));
  ADDEND_RETURN_IF_ERROR(agent->StartRdma());
  absl::Status status;
  agent->loop_->Run([&] { status = agent->Start(); });
  if (!status.ok()) return status;
  return agent;
}

absl::Status Agent::StartRdma() {
  if (options_.rdma_devices.empty()) return absl::OkStatus();
  auto dial = [this](const Address& server) {
    return transports_.link_caller.Call(
        (HostPort{server.host, server.port}).ToString(),
        [self = lasting_.identity](const v1::LinkChallenge& challenge, uint32_t shard) {
          return AccessFor(self, challenge, shard);
        });
  };
  ADDEND_ASSIGN_OR_RETURN(transports_.rdma, MakeRdmaTransport(loop_.get(), options_.rdma_devices,
                                                              std::move(dial), options_.rdma));
  return absl::OkStatus();
}

absl::Status Agent::Start() {
  transports_.tcp = surroundings_.machine->MakeTransport(loop_.get());
  transports_.shm = surroundings_.machine->MakeSharedMemory(loop_.get());
  transports_.inproc = MakeInprocTransport(loop_.get(), network_);
  context_ = MakeContext();
  lasting_.convoy.PaceBy(loop_.get());
  generation_ = std::make_unique<NodeGeneration>(context_);
  admission_ = std::make_unique<Admission>(context_);
  if (surroundings_.open_door != nullptr) {
    ADDEND_ASSIGN_OR_RETURN(door_, surroundings_.open_door(loop_.get(), this));
  } else {
    ADDEND_ASSIGN_OR_RETURN(
        door_, TrainerPort::Listen(loop_.get(), options_.socket, options_.socket_mode, this));
  }
  loop_->RunAfter(kBetweenChecks, [this] { CheckTimeouts(); });
  return absl::OkStatus();
}

NodeContext Agent::MakeContext() {
  return {.options = &options_,
          .identity = &lasting_.identity,
          .lease = absl::ZeroDuration(),
          .loop = loop_.get(),
          .clock = loop_.get(),
          .reports = &lasting_.reports,
          .transports = {.tcp = transports_.tcp.get(),
                         .inproc = transports_.inproc.get(),
                         .shm = transports_.shm.get(),
                         .rdma = transports_.rdma.get()},
          .encoder = &lasting_.encoder,
          .convoy = &lasting_.convoy,
          .directory = &lasting_.directory,
          .job = &lasting_.job,
          .counters = &lasting_.counters,
          .incidents = &lasting_.incidents,
          .journal = &lasting_.journal,
          .slots = result_slots_.get(),
          .pulse = &lasting_.pulse};
}

Agent::~Agent() {
  if (loop_ == nullptr) return;
  loop_->Run([this] {
    door_.reset();  // the trainers are gone: nothing may be told to them
    if (generation_ != nullptr) {
      generation_->CloseLinks(absl::CancelledError("the agent is shutting down"));
    }
    transports_.tcp.reset();
    transports_.inproc.reset();
    transports_.shm.reset();
    transports_.rdma.reset();
  });
  loop_->Stop();
}

void Agent::Begin(const v1::RegisterNodeResponse& registration, ServerId colocated_server,
                  SchedulerReports* reports) {
  loop_->Run([&] {
    lasting_.reports.Set(reports);
    lasting_.directory.colocated = colocated_server;
    lasting_.identity = {.job = JobId(registration.job_id()),
                         .generation = Generation(registration.generation()),
                         .node = admission_->node().value_or(NodeId(0)),
                         .incarnation = options_.incarnation,
                         .token = FromProto(registration.token()),
                         .encrypt = options_.encrypt_data};
    context_.lease = absl::Seconds(registration.lease_s());
    generation_ = std::make_unique<NodeGeneration>(context_);
    lasting_.job.reason = "the agent waits for the scheduler's first word";
    for (const v1::NodeUpdate& update : early_updates_) Apply(update);
    early_updates_.clear();
  });
}

void Agent::OnUpdate(const v1::NodeUpdate& update) {
  // Past a full mailbox: the scheduler repeats nothing.
  loop_->PostSurely([this, update] {
    if (lasting_.reports.is_set()) {
      Apply(update);
    } else {
      early_updates_.push_back(update);
    }
  });
}

void Agent::Apply(const v1::NodeUpdate& update) {
  const Generation generation(update.generation());
  if (generation < lasting_.identity.generation) return;
  if (generation > lasting_.identity.generation) BeginGeneration(generation);
  if (update.has_token()) lasting_.identity.token = FromProto(update.token());
  const bool forms = generation_->Apply(update);
  // A scheduler that begins a generation, or was started again, does not know. First that the
  // former trainers have ended: an idle node has no trainers until it reports them.
  if (update.full()) generation_->ReportAgain();
  if (update.full() || forms) admission_->ReportWaiting();
  AdmitWaiting();
}

void Agent::BeginGeneration(Generation generation) {
  spdlog::info("generation {} of job {} begins", generation.value(), options_.job);
  generation_->End();
  result_slots_->Clear();
  lasting_.journal.BeginGeneration();
  lasting_.identity.generation = generation;
  lasting_.directory.servers.clear();  // of the former plan
  generation_ = std::make_unique<NodeGeneration>(context_);
}

absl::Status Agent::OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd) {
  if (message.fixed.type == ipc::Type::kInit) {
    ADDEND_RETURN_IF_ERROR(admission_->OnInit(trainer, ipc::InitMessage::Decode(message),
                                              *generation_->ranks(),
                                              generation_->state().running()));
    AdmitWaiting();
    return absl::OkStatus();
  }
  if (trainer->local_rank < 0)
    return absl::InvalidArgumentError("the first message must be an init");
  return generation_->OnMessage(trainer, message, std::move(fd));
}

void Agent::OnTrainerGone(Trainer* trainer, const absl::Status& why) {
  admission_->OnTrainerGone(trainer);
  generation_->OnTrainerGone(trainer, why);
}

void Agent::AdmitWaiting() {
  for (Trainer* const trainer : admission_->AdmitWaiting(generation_->ranks())) {
    generation_->OnAdmitted(trainer);
  }
}

void Agent::CheckTimeouts() {
  if (door_ == nullptr) return;  // the agent ends
  loop_->RunAfter(kBetweenChecks, [this] { CheckTimeouts(); });
  lasting_.directory.DropClosed();
  admission_->RefuseStalled(*generation_->ranks());
  generation_->CheckTimeouts();
  FreeNode();
}

// Not before the generation of the trainers is over: the other nodes may still need its results.
void Agent::FreeNode() {
  const LocalRanks& ranks = *generation_->ranks();
  if (options_.node || !admission_->node() || surroundings_.node_is_free == nullptr) return;
  if (admission_->anyone_waits() || ranks.any() || ranks.anyone_left()) return;
  admission_->LetEarlyGo();
  door_.reset();
  surroundings_.node_is_free();
}

std::optional<NodeId> Agent::node() {
  std::optional<NodeId> node;
  loop_->Run([&] { node = admission_->node(); });
  return node;
}

void Agent::RefuseTrainers(const absl::Status& why, absl::Duration grace) {
  const absl::Time deadline = SteadyNow() + grace;
  bool all_told = false;
  loop_->Run([&] {
    generation_->Refuse(why);
    admission_->RefuseAll(why, generation_->ranks()->connected());
    all_told = admission_->refused() >= options_.local_size;
  });
  // Trainers that are just starting must hear the reason too. The loop answers them; this thread
  // only waits.
  Mutex mu;
  CondVar never;
  while (!all_told && SteadyNow() < deadline) {
    {
      MutexLock lock(&mu);
      never.WaitUntil(&mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    }
    loop_->Run([&] { all_told = admission_->refused() >= options_.local_size; });
  }
}

void Agent::End() {
  loop_->Run([this] { lasting_.reports.Set(nullptr); });
}

v1::GetAgentResponse Agent::Snapshot() {
  v1::GetAgentResponse response;
  loop_->Run([&] { response = report_.Snapshot(*generation_); });
  return response;
}

AgentNumbers Agent::Numbers() {
  AgentNumbers numbers;
  loop_->Run([&] { numbers = report_.Numbers(*generation_); });
  numbers.own_spun_s = std::chrono::duration<double>(loop_->spun()).count();
  return numbers;
}

void Agent::FillTrace(JobId job, uint64_t rounds, v1::TraceChunk* chunk) {
  loop_->Run([&] { report_.FillTrace(job, rounds, chunk); });
}

void Agent::FillBeat(v1::HeartbeatRequest* beat) {
  loop_->Run([&] { report_.FillBeat(*generation_, beat); });
}

}  // namespace addend
