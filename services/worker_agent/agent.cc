// The agent's life cycle, the job's state and the plan.
#include "services/worker_agent/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/client/addend.h"
#include "lib/rpc/local_address.h"
#include "lib/summation/engine.h"

namespace addend {
uint32_t TrainerCode(const absl::Status& why, const std::string& kind) {
  if (ExitCodeOf(why) == kExitVersion) return ADDEND_ERROR_VERSION;
  if (kind == "stalled") return ADDEND_ERROR_STALLED;
  if (kind == "peer_lost") return ADDEND_ERROR_PEER_LOST;
  if (kind == "mismatch") return ADDEND_ERROR_MISMATCH;
  if (kind == "resources" || absl::IsResourceExhausted(why)) return ADDEND_ERROR_RESOURCES;
  // The other codes of the C ABI are the exit codes.
  return static_cast<uint32_t>(ExitCodeOf(why));
}

namespace {

auth::Token FromProto(const v1::NodeToken& proto) {
  auth::Token token{.expires_unix_s = proto.expires_unix_s()};
  if (proto.secret().size() == token.secret.size()) {
    const Bytes secret = auth::BytesOf(proto.secret());
    std::copy(secret.begin(), secret.end(), token.secret.begin());
  }
  return token;
}

// What a server is told by gRPC before a link over RDMA. The link itself begins as every other one.
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

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options,
                                                     std::shared_ptr<InprocNetwork> network) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(network)));
  ADDEND_ASSIGN_OR_RETURN(agent->loop_, EventLoop::Start("agent"));
  Agent* const raw = agent.get();
  if (!raw->options_.rdma_devices.empty()) {
    auto dial = [raw](const Address& server) {
      return raw->link_caller_.Call(
          (HostPort{server.host, server.port}).ToString(),
          [self = raw->identity_](const v1::LinkChallenge& challenge, uint32_t shard) {
            return AccessFor(self, challenge, shard);
          });
    };
    ADDEND_ASSIGN_OR_RETURN(
        raw->rdma_, MakeRdmaTransport(raw->loop_.get(), raw->options_.rdma_devices, std::move(dial),
                                      raw->options_.rdma));
  }
  absl::Status status;
  raw->loop_->Run([&] {
    raw->tcp_ = MakeTcpTransport(raw->loop_.get());
    raw->inproc_ = MakeInprocTransport(raw->loop_.get(), raw->network_);
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(std::make_unique<StagingStage>());
    raw->staging_ = static_cast<StagingStage*>(stages.back().get());
    stages.push_back(std::make_unique<ReduceStage>(raw->loop_.get()));
    stages.push_back(std::make_unique<PushStage>(
        &raw->identity_, [raw](const Task& task) { raw->BringAndSend(task); },
        [raw](const Task& task) { raw->SendAudit(task); }));
    raw->push_ = static_cast<PushStage*>(stages.back().get());
    stages.push_back(std::make_unique<PullStage>());
    raw->pull_ = static_cast<PullStage*>(stages.back().get());
    stages.push_back(
        std::make_unique<DeliverStage>([raw](const Task& task) { raw->Deliver(task); }));
    raw->pipeline_ = std::make_unique<Pipeline>(std::move(stages));
    auto port =
        TrainerPort::Listen(raw->loop_.get(), raw->options_.socket, raw->options_.socket_mode, raw);
    status = port.status();
    if (port.ok()) raw->port_ = *std::move(port);
    raw->loop_->RunAfter(absl::Seconds(1), [raw] { raw->CheckStalls(); });
  });
  if (!status.ok()) return status;
  return agent;
}

Agent::Agent(Options options, std::shared_ptr<InprocNetwork> network)
    : options_(std::move(options)),
      network_(std::move(network)),
      reason_("the agent has not reached the scheduler yet"),
      nodes_(options_.num_nodes),
      convoy_(SendLimitsFor(options_.bandwidth_bps)),
      ranks_(options_.local_size, nullptr),
      ever_admitted_(options_.local_size, false),
      devices_(options_.local_size),
      staging_order_([this](const std::shared_ptr<Tensor>& tensor, uint32_t lead) {
        TellContribute(tensor.get(), lead);
      }),
      host_copies_(
          [this](const Tensor& tensor, uint32_t part) { return AskForHostCopy(tensor, part); }),
      nonfinite_(options_.local_size, 0) {}

Agent::~Agent() {
  if (loop_ == nullptr) return;
  loop_->Run([this] {
    port_.reset();
    if (pipeline_ != nullptr) pipeline_->Clear();
    for (auto& [key, link] : links_)
      link->Close(absl::CancelledError("the agent is shutting down"));
    tcp_.reset();
    inproc_.reset();
    rdma_.reset();
  });
  loop_->Stop();
}

void Agent::Begin(const v1::RegisterNodeResponse& registration, ServerId colocated_server,
                  SchedulerReports* reports) {
  loop_->Run([&] {
    reports_ = reports;
    lease_ = absl::Seconds(registration.lease_s());
    colocated_server_ = colocated_server;
    identity_ = {.job = JobId(registration.job_id()),
                 .generation = Generation(registration.generation()),
                 .node = options_.node,
                 .incarnation = options_.incarnation,
                 .token = FromProto(registration.token()),
                 .encrypt = options_.encrypt_data};
    reason_ = "the agent waits for the scheduler's first word";
    for (const v1::NodeUpdate& update : early_updates_) Apply(update);
    early_updates_.clear();
  });
}

void Agent::OnUpdate(const v1::NodeUpdate& update) {
  loop_
      ->Post([this, update] {
        if (reports_ == nullptr) {
          early_updates_.push_back(update);
        } else {
          Apply(update);
        }
      })
      .IgnoreError();
}

void Agent::Apply(const v1::NodeUpdate& update) {
  const Generation generation(update.generation());
  if (generation < identity_.generation) return;
  if (generation > identity_.generation) BeginGeneration(generation);
  if (update.has_token()) identity_.token = FromProto(update.token());
  if (const PlanVersion told(update.plan_version()); told > plan_version_) {
    plan_version_ = told;
    ++plan_changes_;
  }
  journal_.SetOptimum(update.optimal_s_per_byte());
  if (update.servers_size() > 0) {
    servers_.clear();
    for (const v1::ServerInfo& server : update.servers()) servers_[server.server_id()] = server;
    CloseDeadLinks();
  }
  NoteChange(update);
  for (const uint32_t removed : update.removed()) ForgetTensor(TensorId(removed));
  for (const v1::TensorPlan& plan : update.tensors()) ApplyPlan(plan);
  for (const v1::TensorError& error : update.errors()) {
    const auto it = by_name_.find(error.name());
    if (it == by_name_.end()) continue;
    const absl::Status why = WithExitCode(
        absl::Status(error.kind() == "resources" ? absl::StatusCode::kResourceExhausted
                                                 : absl::StatusCode::kFailedPrecondition,
                     error.message()),
        static_cast<ExitCode>(error.exit_code()));
    FailTensor(it->second.tensors.front().get(), why, "");
  }
  NoteMembers(update);
  const bool forms = update.state() == v1::FORMING && job_state_ != v1::FORMING;
  if (update.state() == v1::FAILED) {
    const absl::Status why = WithExitCode(absl::Status(absl::StatusCode::kAborted, update.reason()),
                                          static_cast<ExitCode>(update.exit_code()));
    FailJob(why, update.failed_kind(), /*report=*/false);
    // The others do not wait for this node, and no owner answers it any more.
    const auto& lost = update.lost_nodes();
    if (std::find(lost.begin(), lost.end(), options_.node.value()) != lost.end()) {
      EndGeneration(/*decided=*/false);
    }
  } else if (failing_.ok() || !failure_.ok()) {
    job_state_ = update.state();
    reason_ = update.reason();
  }
  AckChange();
  // Whoever begins a generation, or has been started anew, does not know.
  if (update.full() || forms) ReportWaiting();
  AdmitWaiting();
}

void Agent::BeginGeneration(Generation generation) {
  spdlog::info("generation {} of job {} begins", generation.value(), options_.job);
  for (TrainerLink* trainer : ranks_) {
    if (trainer != nullptr) trainer->Close(absl::AbortedError("the generation is over"));
  }
  ranks_.assign(options_.local_size, nullptr);
  ever_admitted_.assign(options_.local_size, false);
  pipeline_->Clear();
  staging_order_.Clear();
  host_copies_.Clear();
  unsent_.clear();
  direct_rank_.reset();
  push_->ReadDevices(true);
  devices_ = DeviceGroups(options_.local_size);
  first_device_at_ = absl::InfiniteFuture();
  for (auto& [key, link] : links_) {
    link->Close(absl::CancelledError("the generation is over"));
    retired_links_.push_back(std::move(link));
  }
  links_.clear();
  lost_servers_.clear();
  rdma_failures_.clear();
  routes_.clear();
  change_ = {};
  DropRetiredLinks();
  by_number_.clear();
  by_name_.clear();
  by_id_.clear();
  result_slots_->Clear();
  somebody_left_ = idle_reported_ = false;
  failure_ = failing_ = absl::OkStatus();
  failing_code_ = 0;
  journal_.BeginGeneration();
  nonfinite_told_ = false;
  nodes_ = options_.num_nodes;
  waiting_nodes_ = 0;
  identity_.generation = generation;
}

void Agent::DropRetiredLinks() {
  std::erase_if(retired_links_, [](const auto& link) { return link->closed(); });
}

void Agent::ApplyPlan(const v1::TensorPlan& plan) {
  if (const auto known = by_id_.find(TensorId(plan.tensor_id())); known != by_id_.end()) {
    return FollowPlan(known->second, plan);
  }
  if (!failing_.ok()) return;
  const auto it = by_name_.find(plan.tensor().name());
  if (it == by_name_.end()) return;
  const std::shared_ptr<Tensor> tensor = it->second.tensors.front();
  if (tensor->planned() || !tensor->declared_to_scheduler) return;
  tensor->id = TensorId(plan.tensor_id());
  tensor->partition_elements = std::max<uint64_t>(plan.partition_elements(), 1);
  for (int i = 0; i < plan.servers_size(); ++i) {
    const auto link = LinkTo(plan.servers(i), plan.shards(i));
    if (!link.ok()) return FailJob(link.status(), "internal", /*report=*/true);
    const PlanVersion version(i < plan.versions_size() ? plan.versions(i) : 0);
    // Another node's first round may have been with the first owner, so a later one asks this node
    // too.
    tensor->owners.push_back({.link = *link,
                              .version = version,
                              .reported = version != PlanVersion(),
                              .next = nullptr,
                              .next_version = PlanVersion()});
  }
  if (tensor->asynchronous()) tensor->stamps.resize(tensor->partitions());
  tensor->way.resize(tensor->partitions());
  by_id_[tensor->id] = tensor;
  owners_changed_ = true;
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    if (tensor->owners[partition].reported) {
      push_->SendReport(*tensor, partition, FrameType::kRecover);
    }
  }
  TakeMoves(tensor, plan);
  TryStart(tensor);
}

absl::StatusOr<ServerLink*> Agent::LinkTo(uint32_t server, uint32_t shard) {
  const LinkKey key(server, shard);
  if (const auto it = links_.find(key); it != links_.end() && !it->second->given_up()) {
    Reconnect(key);  // if it was lost when nobody needed it
    return it->second.get();
  } else if (it != links_.end()) {  // the server is in the plan once more
    retired_links_.push_back(std::move(it->second));
    links_.erase(it);
  }
  ServerEvents* const events = this;
  if (ServerId(server) == colocated_server_) {
    auto& link = links_[key] = std::make_unique<ServerLink>(
        &identity_, events, &convoy_, ServerId(server), "the colocated summation server", shard);
    link->Connect(inproc_.get(), {.host = Engine::InprocName(shard)}, "", options_.connect_timeout);
    return link.get();
  }
  const auto it = servers_.find(server);
  if (it == servers_.end() || it->second.endpoints_size() == 0) {
    return absl::InternalError(
        absl::StrFormat("the plan names summation server %d, which is unknown", server));
  }
  const v1::ServerInfo& info = it->second;
  const v1::DataEndpoint& endpoint = info.endpoints(0);
  const std::string where =
      info.colocated() ? absl::StrFormat("the summation server of node %d (%s)",
                                         info.colocated_node(), info.hostname())
                       : absl::StrFormat("summation server %d (%s)", server, info.hostname());
  ADDEND_RETURN_IF_ERROR(CheckReachable(where, endpoint));
  auto link =
      std::make_unique<ServerLink>(&identity_, events, &convoy_, ServerId(server), where, shard);
  ADDEND_RETURN_IF_ERROR(Connect(link.get(), info, options_.connect_timeout));
  return (links_[key] = std::move(link)).get();
}

// A connection to a loopback address of another machine would end at whoever listens there on this
// one.
absl::Status Agent::CheckReachable(const std::string& where,
                                   const v1::DataEndpoint& endpoint) const {
  if (!IsLoopback(endpoint.host()) || IsLoopback(options_.advertise)) return absl::OkStatus();
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrFormat(
          "%s advertises %s, which other machines cannot reach: start it with --advertise=HOST, an "
          "address that %s (node %d) reaches",
          where, endpoint.host(), options_.hostname, options_.node.value())),
      kExitBadConfiguration);
}

void Agent::RefuseTrainers(const absl::Status& why, absl::Duration grace) {
  const absl::Time deadline = absl::Now() + grace;
  bool all_told = false;
  loop_->Run([&] {
    refusing_ = why;
    FailJob(why, /*kind=*/"", /*report=*/false);
    EndGeneration(/*decided=*/false);
    for (TrainerLink* trainer : ranks_) refused_ += trainer != nullptr;
    while (!waiting_.empty()) {
      RefuseInit(waiting_.front().trainer, why, "");
      waiting_.pop_front();
    }
    all_told = refused_ >= options_.local_size;
  });
  // Trainers that are just starting deserve the reason too. The loop answers them; this thread only
  // waits.
  Mutex mu;
  CondVar never;
  while (!all_told && absl::Now() < deadline) {
    {
      MutexLock lock(&mu);
      never.WaitUntil(&mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    }
    loop_->Run([&] { all_told = refused_ >= options_.local_size; });
  }
}

void Agent::End() {
  loop_->Run([this] { reports_ = nullptr; });
}

}  // namespace addend
