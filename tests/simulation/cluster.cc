#include "tests/simulation/cluster.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "lib/client/messages.h"
#include "lib/member/protocols.h"
#include "lib/server/machine_options.h"
#include "tests/simulation/sockets.h"

namespace addend::simulation {
namespace {

// The host's server, whose data port is `port`.
v1::RegisterServerRequest RegistrationOf(const Process& process, uint16_t port,
                                         double bandwidth_bps, uint64_t memory_limit_bytes) {
  MachineOptions options;
  options.advertise = options.data_host = process.host();
  options.bandwidth_bps = bandwidth_bps;
  auto request = ServerRegistration(options, {}, /*grpc_port=*/1, port, memory_limit_bytes);
  request.set_hostname(process.host());
  return request;
}

}  // namespace

// ---- a server's membership ----

ServerMembership::ServerMembership(Cluster* cluster, std::shared_ptr<Process> process,
                                   Engine* engine, v1::RegisterServerRequest request,
                                   std::function<void()> on_registered,
                                   std::function<void(const absl::Status&)> on_fatal)
    : cluster_(cluster),
      process_(std::move(process)),
      engine_(engine),
      request_(std::move(request)) {
  FillVersions(&request_);
  request_.set_incarnation(engine->incarnation().value());
  request_.set_shards(engine->shards());
  request_.set_member_key(cluster->world()->random().Key());
  session_ = std::make_shared<Session>(
      process_, cluster->network(), cluster->place(),
      Session::Hooks{
          .register_member =
              [this](Scheduler* scheduler, const v1::MemberId* former, absl::Duration* lease) {
                return Register(scheduler, former, lease);
              },
          .beat =
              [this](v1::HeartbeatRequest* beat) {
                const EngineStats stats = engine_->stats();
                *beat->mutable_traffic() = ToProto(stats);
                beat->set_memory_used_bytes(stats.memory_used_bytes);
                AddTroubles(*engine_, beat);
                for (const std::string& text : engine_->TakeMismatches()) {
                  cluster_->world()->Violate("an audit has found a wrong sum: " + text);
                }
              },
          .announce = [this](v1::WatchRequest* watch) { announced_.AddTo(watch); },
          .on_server = [this](const v1::ServerUpdate& update) { OnUpdate(update); },
          .on_node = nullptr,
          .on_report = nullptr,
          .on_registered =
              [this, on_registered = std::move(on_registered)] {
                engine_->SetServerId(ServerId(id()));
                on_registered();
              },
          .on_fatal = std::move(on_fatal)});
}

absl::StatusOr<v1::MemberId> ServerMembership::Register(Scheduler* scheduler,
                                                        const v1::MemberId* former,
                                                        absl::Duration* lease) {
  v1::RegisterServerRequest request = request_;
  if (former != nullptr) {
    request.set_former_server_id(former->server_id());
    announced_.AddTo(&request);
  }
  const auto answer =
      scheduler->Take(scheduler->membership().RegisterServer(scheduler->now(), request));
  if (!answer.ok()) return answer.status();
  if (former != nullptr && !request_.colocated_job().empty() &&
      former->server_id() != answer->server_id()) {
    return absl::FailedPreconditionError("the colocated server has another number");
  }
  *lease = absl::Seconds(answer->lease_s());
  ids_.insert(answer->server_id());
  v1::MemberId id;
  id.set_server_id(answer->server_id());
  id.set_incarnation(request_.incarnation());
  id.set_key(request_.member_key());
  return id;
}

void ServerMembership::OnUpdate(const v1::ServerUpdate& update) {
  announced_.Note(update);
  v1::AckReservationRequest ack = CarryOut(update, engine_);
  *ack.mutable_member() = session_->id();
  ack.set_update_id(update.update_id());
  if (update.drained()) drained_ = true;
  session_->Call(
      absl::Seconds(5),
      [ack](Scheduler* scheduler) {
        return scheduler->Take(scheduler->membership().AckReservation(scheduler->now(), ack));
      },
      [session = session_](const absl::Status& status) {
        if (!status.ok()) session->WatchAgain();
      });
}

void ServerMembership::Drain() {
  v1::DrainRequest request;
  request.set_server_id(id());
  request.set_member_key(request_.member_key());
  session_->Call(
      absl::Seconds(5),
      [request](Scheduler* scheduler) {
        return scheduler->Take(scheduler->membership().Drain(scheduler->now(), request));
      },
      [](const absl::Status&) {});
}

// Never by measured times, which are those of the machine.
WireEncoding Cluster::DrawEncoding() {
  switch (plan_.encodings) {
    case Plan::Encodings::kNever:
      return WireEncoding::kRaw;
    case Plan::Encodings::kAlways:
      return WireEncoding::kAlways;
    case Plan::Encodings::kMixed:
      break;
  }
  return world_->random().OneIn(2) ? WireEncoding::kAlways : WireEncoding::kRaw;
}

// ---- a CPU server ----

CpuServer::CpuServer(Cluster* cluster, std::string name, std::string host)
    : process_(cluster->NewProcess(name, host)), machine_(cluster->network(), process_) {
  uint64_t limit_bytes = cluster->plan().memory_limit_bytes;
  if (cluster->plan().promises_too_much) limit_bytes /= cluster->world()->random().Between(1, 4);
  engine_ = *Engine::Create({.shards = cluster->plan().shards,
                             .memory_limit_bytes = limit_bytes,
                             .incarnation = Incarnation(cluster->world()->random().Bits() | 1),
                             .send_limits = SendLimitsFor(cluster->plan().bandwidth_bps),
                             .encoding = cluster->DrawEncoding(),
                             .network = nullptr,
                             .external_slots = nullptr,
                             .machine = &machine_});
  const uint16_t port = *engine_->Listen({.host = process_->host()});
  auto request = RegistrationOf(*process_, port, cluster->plan().bandwidth_bps,
                                cluster->plan().memory_limit_bytes);
  request.set_place(absl::StrFormat("rack-%d", engine_->incarnation().value() % 3));
  member_ = std::make_unique<ServerMembership>(
      cluster, process_, engine_.get(), std::move(request),
      [this] { process_->Trace(absl::StrFormat("is summation server %d", member_->id())); },
      [this](const absl::Status& why) {
        process_->Trace(absl::StrFormat("cannot come back: %s", why.message()));
        ended_ = true;
      });
  member_->Start();
}

CpuServer::~CpuServer() = default;

void CpuServer::Drain() {
  if (draining_) return;
  draining_ = true;
  process_->Trace("drains");
  EndWhenDrained();
}

// As ServerMember::Drain(): the request is repeated.
void CpuServer::EndWhenDrained() {
  if (member_->drained()) {
    member_->Leave();
    ended_ = true;
    process_->Trace("is drained");
    return;
  }
  member_->Drain();
  process_->After(absl::Seconds(1), [this] { EndWhenDrained(); });
}

// ---- an agent ----

class AgentHost::Door final : public TrainerDoor {
 public:
  Door(AgentHost* host, Loop* loop, TrainerEvents* events)
      : host_(host), loop_(loop), events_(events) {}
  ~Door() override {
    host_->door_ = nullptr;
    for (const auto& end : ends_) end->Hang();
  }
  std::shared_ptr<TrainerSocket> Accept() {
    ends_.push_back(std::make_unique<TrainerEnd>(loop_, events_, [this](TrainerEnd* gone) {
      ends_.remove_if([gone](const auto& other) { return other.get() == gone; });
    }));
    return ends_.back()->socket();
  }

 private:
  AgentHost* const host_;
  Loop* const loop_;
  TrainerEvents* const events_;
  std::list<std::unique_ptr<TrainerEnd>> ends_;
};

class AgentHost::Reports final : public SchedulerReports {
 public:
  Reports(AgentHost* host, std::shared_ptr<Session> session)
      : host_(host), session_(std::move(session)) {}
  void Send(Report report) override {
    if (const auto* failure = std::get_if<v1::ReportFailureRequest>(&report)) {
      host_->own_ = {failure->generation(), host_->cluster_->world()->Now()};
    }
    session_->Send(std::move(report));
  }
  void BeatSoon() override { session_->BeatSoon(); }

 private:
  AgentHost* const host_;
  const std::shared_ptr<Session> session_;
};

AgentHost::AgentHost(Cluster* cluster, const JobPlan* job, uint32_t node)
    : cluster_(cluster),
      job_(job),
      node_(node),
      process_(cluster->NewProcess(absl::StrFormat("%s/agent%d", job->name, node),
                                   absl::StrFormat("%s-host%d", job->name, node))),
      incarnation_(cluster->world()->random().Bits() | 1),
      key_(cluster->world()->random().Key()),
      machine_(cluster->network(), process_),
      inproc_(MakeInprocNetwork()) {
  agent_ = *Agent::Create(
      {.job = job->name,
       .node = NodeId(node),
       .num_nodes = job->nodes,
       .local_size = job->local_size,
       .incarnation = incarnation_,
       .hostname = process_->host(),
       .advertise = process_->host(),
       .socket = "simulated",
       .bandwidth_bps = cluster->plan().bandwidth_bps,
       .stall_timeout = kStallTimeout,
       .audit_one_in = job->audit_one_in,
       .wire_encoding = cluster->DrawEncoding(),
       .encrypt_data = job->encrypts,
       .topology = Topology{}},
      inproc_,
      {.machine = &machine_,
       .open_door = [this](EventLoop* loop,
                           TrainerEvents* events) -> absl::StatusOr<std::unique_ptr<TrainerDoor>> {
         auto door = std::make_unique<Door>(this, static_cast<Loop*>(loop), events);
         door_ = door.get();
         return door;
       }});
  Engine::Options options{.shards = cluster->plan().shards,
                          .incarnation = incarnation_,
                          .send_limits = SendLimitsFor(cluster->plan().bandwidth_bps),
                          .encoding = cluster->DrawEncoding(),
                          .network = inproc_,
                          .external_slots = nullptr,
                          .machine = &machine_};
  options.external_slots = [slots = agent_->result_slots()](JobId, Generation generation,
                                                            const std::string& name) {
    return slots->Find(generation, name);
  };
  engine_ = *Engine::Create(std::move(options));
  const uint16_t port = *engine_->Listen({.host = process_->host()});
  if (!engine_->ListenInproc().ok()) std::abort();
  auto request = RegistrationOf(*process_, port, cluster->plan().bandwidth_bps,
                                /*memory_limit_bytes=*/0);
  request.set_colocated_job(job->name);
  request.set_colocated_node(node);
  server_ = std::make_unique<ServerMembership>(
      cluster, process_, engine_.get(), std::move(request), [this] { JoinAsNode(); },
      [this](const absl::Status& why) { Fail(why); });
  server_->Start();
}

AgentHost::~AgentHost() {
  engine_.reset();  // it may hold contributions in the agent's memory
  agent_.reset();
}

absl::StatusOr<v1::MemberId> AgentHost::Register(Scheduler* scheduler, const v1::MemberId* former,
                                                 absl::Duration* lease) {
  v1::RegisterNodeRequest request;
  FillVersions(&request);
  request.set_incarnation(incarnation_.value());
  request.set_job(job_->name);
  request.set_node_rank(node_);
  v1::JobSettings* const settings = request.mutable_settings();
  settings->set_num_nodes(job_->nodes);
  settings->set_local_size(job_->local_size);
  settings->set_partition_bytes(job_->partition_bytes);
  settings->set_on_node_loss(job_->shrink ? "shrink" : "fail");
  settings->set_reduction_order("node");
  settings->set_audit_one_in(job_->audit_one_in);
  settings->set_intranode("auto");
  settings->set_deterministic_intranode(true);
  settings->set_stall_timeout_s(static_cast<uint32_t>(absl::ToInt64Seconds(kStallTimeout)));
  request.set_hostname(process_->host());
  if (job_->rack_nodes != 0) {
    request.set_place(absl::StrFormat("rack-%d", node_ / job_->rack_nodes));
  }
  request.set_control_address(process_->host() + ":1");
  request.set_colocated_server_id(server_->id());
  request.set_member_key(key_);
  request.set_bandwidth_bps(cluster_->plan().bandwidth_bps);
  // The others are of an older release.
  request.set_takes_server_changes(incarnation_.value() % 16 != 1);
  if (former != nullptr) {
    request.set_former_job_id(former->job_id());
    memory_.AddTo(&request);
  }
  const auto answer =
      scheduler->Take(scheduler->membership().RegisterNode(scheduler->now(), request));
  if (!answer.ok()) return answer.status();
  if (former == nullptr) {
    registration_ = *answer;
  } else if (former->job_id() != answer->job_id()) {
    return absl::FailedPreconditionError("the job has another number");
  }
  *lease = absl::Seconds(answer->lease_s());
  v1::MemberId id;
  id.set_job_id(answer->job_id());
  id.set_node_rank(node_);
  id.set_incarnation(incarnation_.value());
  id.set_key(key_);
  return id;
}

void AgentHost::JoinAsNode() {
  session_ = std::make_shared<Session>(
      process_, cluster_->network(), cluster_->place(),
      Session::Hooks{
          .register_member =
              [this](Scheduler* scheduler, const v1::MemberId* former, absl::Duration* lease) {
                return Register(scheduler, former, lease);
              },
          .beat = [this](v1::HeartbeatRequest* beat) { agent_->FillBeat(beat); },
          .announce = [this](v1::WatchRequest* watch) { announced_.AddTo(watch); },
          .on_server = nullptr,
          .on_node =
              [this](const v1::NodeUpdate& update) {
                announced_.Note(update);
                memory_.Note(update);
                if (auto failure = memory_.Unconfirmed(); update.full() && failure.has_value()) {
                  session_->Send(*std::move(failure));
                }
                OnUpdate(update);
                agent_->OnUpdate(update);
              },
          .on_report = [this](const Report& report) { memory_.Note(report); },
          .on_registered =
              [this] {
                process_->Trace(absl::StrFormat("is node %d with server %d", node_, server_->id()));
                agent_->Begin(registration_, ServerId(server_->id()), reports_.get());
              },
          .on_fatal = [this](const absl::Status& why) { Fail(why); }});
  reports_ = std::make_unique<Reports>(this, session_);
  session_->Start();
}

void AgentHost::OnUpdate(const v1::NodeUpdate& update) {
  const auto& lost = update.lost_nodes();
  if (std::find(lost.begin(), lost.end(), node_) != lost.end()) {
    told_ = {};  // no owner answers it any more
  } else if (update.state() == v1::FAILED && told_.generation != update.generation()) {
    told_ = {update.generation(), cluster_->world()->Now()};
  }
  OwnersChange change{.host = process_->host(), .moves = {}, .servers = {}};
  std::vector<uint32_t> owners;
  for (const v1::TensorPlan& plan : update.tensors()) {
    cluster_->oracle()->OnPlan(*job_, node_, registration_.job_id(), update.generation(), plan);
    for (int i = 0; i < plan.servers_size(); ++i) {
      named_[{plan.tensor_id(), i}].insert(plan.servers(i));
      if (plan.versions_size() > 0) owners.push_back(plan.servers(i));
    }
    for (const v1::PartitionMove& move : plan.moves()) {
      named_[{plan.tensor_id(), move.partition()}].insert(move.server());
      const uint32_t owner = plan.servers(static_cast<int>(move.partition()));
      change.moves.emplace_back(owner, move.server());
      change.servers.insert(change.servers.end(), {owner, move.server()});
    }
  }
  if (change.servers.empty()) change.servers = std::move(owners);
  if (!change.servers.empty() && cluster_->on_change) cluster_->on_change(change);
}

bool AgentHost::IsNamed(const std::set<uint32_t>& server, PartitionId partition) const {
  const auto known = named_.find({partition.tensor().value(), partition.index()});
  return known == named_.end() || std::any_of(server.begin(), server.end(), [&known](uint32_t id) {
           return known->second.contains(id);
         });
}

void AgentHost::Fail(const absl::Status& why) {
  process_->Trace(absl::StrFormat("cannot come back: %s", why.message()));
  failed_ = true;
}

bool AgentHost::OwnersHaveDecided(const GenerationId& generation) const {
  const absl::Duration lease = cluster_->plan().lease;
  const bool by_itself = own_.generation == told_.generation;
  const absl::Time began = by_itself ? std::min(own_.at, told_.at) : told_.at;
  return generation.first == registration_.job_id() && generation.second == told_.generation &&
         cluster_->world()->Now() - began < 0.9 * lease;
}

std::shared_ptr<TrainerSocket> AgentHost::Accept() {
  return door_ == nullptr ? nullptr : door_->Accept();
}

// ---- the cluster ----

Cluster::Cluster(World* world, Plan plan)
    : world_(world),
      plan_(std::move(plan)),
      network_(world, plan_.path),
      oracle_(world, plan_.promises_too_much) {
  StartScheduler();
  for (uint32_t i = 0; i < plan_.cpu_servers; ++i) StartServer();
  for (const JobPlan& job : plan_.jobs) {
    for (uint32_t node = 0; node < job.nodes; ++node) {
      StartAgent(&job, node);
      for (uint32_t local = 0; local < job.local_size; ++local) {
        ranks_.push_back(std::make_unique<Rank>(this, &job, node, local));
      }
    }
  }
}

// Processes die before their objects: nobody says goodbye.
Cluster::~Cluster() {
  for (const auto& rank : ranks_) rank->process()->Kill();
  for (const auto& server : servers_) server->process()->Kill();
  for (const auto& [where, agent] : agents_) {
    if (agent != nullptr) agent->process()->Kill();
  }
  for (const auto& scheduler : former_) scheduler->process()->Kill();
  ranks_.clear();
  agents_.clear();
  servers_.clear();
}

std::shared_ptr<Process> Cluster::NewProcess(const std::string& name, const std::string& host) {
  const double drift = plan_.clock_drift * (2 * world_->random().Fraction() - 1);
  return std::make_shared<Process>(world_, name, host, 1 + drift);
}

std::unique_ptr<AgentHost>& Cluster::agent(const JobPlan* job, uint32_t node) {
  return agents_[{job, node}];
}

void Cluster::StartScheduler() {
  auto process = NewProcess("scheduler", place_.host);
  process->Trace("starts");
  place_.scheduler = std::make_shared<Scheduler>(process, &network_, &store_,
                                                 Scheduler::Options{.lease = plan_.lease});
  const absl::Status status = place_.scheduler->Start();
  if (!status.ok())
    world_->Violate(absl::StrFormat("the scheduler does not start: %s", status.message()));
}

void Cluster::KillScheduler(bool silent) {
  if (place_.scheduler == nullptr) return;
  place_.scheduler->process()->Trace("dies");
  place_.scheduler->process()->Kill();
  place_.scheduler->OnDeath(silent);
  world_->After(absl::ZeroDuration(),
                [scheduler = std::move(place_.scheduler)]() mutable { scheduler.reset(); });
  place_.scheduler = nullptr;
}

// As leaders in etcd: the next begins when the lease of the former is over.
void Cluster::ChangeLeader(absl::Duration pause) {
  const std::shared_ptr<Scheduler> former = place_.scheduler;
  if (former == nullptr) return;
  former->process()->Stop();
  world_->After(plan_.lease, [this, former] {
    if (place_.scheduler != former || !former->process()->alive()) return;
    former_.push_back(former);
    StartScheduler();
  });
  world_->After(std::max(pause, plan_.lease), [this, former] {
    former->process()->Continue();
    // It finds that its lease is over, if it does not write before.
    world_->After(absl::Seconds(1), [this, former] {
      if (place_.scheduler == former) return;
      if (former->process()->alive()) {
        former->process()->Trace("ends: another scheduler leads");
        former->process()->Kill();
        former->OnDeath(/*silent=*/false);
      }
      former_.remove(former);
    });
  });
}

void Cluster::StartServer() {
  const uint32_t number = ++names_;
  servers_.push_back(std::make_unique<CpuServer>(this, absl::StrFormat("server%d", number),
                                                 absl::StrFormat("cpu-host%d", number)));
}

void Cluster::KillServer(size_t index, bool silent) {
  std::unique_ptr<CpuServer> server = std::move(servers_[index]);
  servers_.erase(servers_.begin() + static_cast<ptrdiff_t>(index));
  server->process()->Trace("dies");
  server->process()->Kill();
  network_.OnDeath(*server->process(), silent);
  Bury(std::move(server));
}

std::shared_ptr<Process> Cluster::ProcessOf(uint32_t server) {
  for (const auto& one : servers_) {
    if (one->id() == server) return one->process();
  }
  for (const auto& [where, agent] : agents_) {
    if (agent != nullptr && agent->server_id() == server) return agent->process();
  }
  return nullptr;
}

void Cluster::StartAgent(const JobPlan* job, uint32_t node) {
  agents_[{job, node}] = std::make_unique<AgentHost>(this, job, node);
}

void Cluster::KillAgent(const JobPlan* job, uint32_t node, bool silent) {
  std::unique_ptr<AgentHost> agent = std::move(agents_[{job, node}]);
  if (agent == nullptr) return;
  agent->process()->Trace("dies");
  agent->process()->Kill();
  network_.OnDeath(*agent->process(), silent);
  Bury(std::move(agent));
}

void Cluster::KillRank(size_t index) {
  ranks_[index]->process()->Trace("dies");
  ranks_[index]->process()->Kill();
  std::unique_ptr<Rank> dead = std::move(ranks_[index]);
  const uint32_t rank = dead->rank();
  const JobPlan* const job = dead->job();
  ranks_[index] = std::make_unique<Rank>(this, job, rank / job->local_size, rank % job->local_size);
  Bury(std::move(dead));
}

}  // namespace addend::simulation
