// addend-agent: one per node; the trainers' way to the summation servers, and a summation server
// itself.
#include <prometheus/registry.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/usable_cpus.h"
#include "lib/member/member.h"
#include "lib/member/node_number.h"
#include "lib/member/protocols.h"
#include "lib/options/log_options.h"
#include "lib/options/options.h"
#include "lib/options/port_file.h"
#include "lib/options/privileges.h"
#include "lib/options/stop_signal.h"
#include "lib/reduce/reduce.h"
#include "lib/rpc/local_address.h"
#include "lib/rpc/server.h"
#include "lib/rpc/tls_options.h"
#include "lib/server/diagnostics_service.h"
#include "lib/server/engine_metrics.h"
#include "lib/server/machine_options.h"
#include "lib/server/summation_member.h"
#include "lib/server/summation_service.h"
#include "lib/server/trace_service.h"
#include "lib/telemetry/http_server.h"
#include "lib/transport/tcp/aes_gcm.h"
#include "services/worker_agent/agent.h"
#include "services/worker_agent/agent_service.h"
#include "services/worker_agent/metrics.h"
#include "services/worker_agent/one_loop.h"
#include "services/worker_agent/options.h"

namespace addend {
namespace {

// How long a failing agent stays to tell its trainers why.
constexpr absl::Duration kRefusalGrace = absl::Seconds(3);
// Where trainers say the node, the agent that had it in the former run may be about to give it up.
constexpr absl::Duration kUntilNodeIsFree = absl::Seconds(10);
// An agent that does not know its node looks for a trainer so often.
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(100);

class MemberReports final : public SchedulerReports {
 public:
  explicit MemberReports(NodeMember* member) : member_(member) {}
  void Send(Report report) override { member_->Send(std::move(report)); }
  void BeatSoon() override { member_->BeatSoon(); }

 private:
  NodeMember* const member_;
};

using Ports = std::map<std::string, uint16_t>;  // as in the port file

// No new attempt of the same process helps (docs/operations.md, Exit statuses).
bool IsForGood(const absl::Status& status) {
  constexpr FailureKind kForGood[] = {FailureKind::kInvalid, FailureKind::kMismatch,
                                      FailureKind::kVersion, FailureKind::kPermission};
  return std::any_of(std::begin(kForGood), std::end(kForGood), [&status](FailureKind kind) {
    return TraitsOf(kind).exit_status == ExitCodeOf(status);
  });
}

// Counts as ready, and tells each trainer the reason, until a signal.
void RefuseUntilStopped(Agent* agent, const TrainersDoor& door, const absl::Status& why,
                        StopSignal* stop) {
  spdlog::error("{}; every trainer is told, until this agent is stopped", Message(why));
  agent->RefuseTrainers(why, absl::ZeroDuration());
  absl::StatusOr<std::unique_ptr<HealthServer>> health;
  if (door.health) {
    health = HealthServer::Start(*door.health);
    if (!health.ok()) {
      spdlog::error("probes cannot be answered, so this agent ends: {}", Message(health.status()));
      return;
    }
    (*health)->SetReady(true);
  }
  stop->WaitForSignal();
}

// For failures before the agent can be made: of the options, or of the certificates.
absl::Status RefuseWithoutOptions(const absl::Status& why, StopSignal* stop) {
  const TrainersDoor door = ReadTrainersDoor();
  if (!door.stay_to_refuse || !IsForGood(why)) return why;
  NodeOptions node;
  node.socket = door.socket;
  node.socket_mode = door.socket_mode;
  const auto agent = Agent::Create(node, MakeInprocNetwork());
  if (!agent.ok()) return why;
  RefuseUntilStopped(agent->get(), door, why, stop);
  return why;
}

// But for the node's number and its server.
v1::RegisterNodeRequest RegistrationOf(const AgentOptions& options, Incarnation incarnation,
                                       uint16_t grpc_port) {
  v1::RegisterNodeRequest request;
  FillVersions(&request);
  request.set_incarnation(incarnation.value());
  request.set_job(options.job);
  v1::JobSettings* settings = request.mutable_settings();
  settings->set_num_nodes(options.num_nodes);
  settings->set_local_size(options.local_size);
  settings->set_partition_bytes(options.partition_bytes);
  settings->set_on_node_loss(options.on_node_loss);
  settings->set_reduction_order(options.reduction_order);
  settings->set_audit_one_in(options.audit_one_in);
  settings->set_intranode(options.intranode ? NameOf(*options.intranode) : "auto");
  settings->set_deterministic_intranode(options.deterministic_intranode);
  settings->set_stall_timeout_s(absl::ToDoubleSeconds(options.stall_timeout));
  request.set_hostname(Hostname());
  request.set_control_address((HostPort{options.machine.advertise, grpc_port}).ToString());
  request.set_bandwidth_bps(options.machine.bandwidth_bps);
  request.set_place(options.machine.place);
  request.set_takes_server_changes(true);
  request.set_join_proof(options.join_proof);
  return request;
}

// The process: everything after the options, in the order in which it has to end.
class AgentProcess {
 public:
  AgentProcess(const AgentOptions& options, Incarnation incarnation, StopSignal* stop)
      : options_(options),
        stop_(stop),
        incarnation_(incarnation),
        machine_(MakeMachine(options.machine.most_spin, options.machine.transport.shared_memory)) {}

  absl::Status Run() {
    // Trainers hear also why there is no RDMA, so the agent begins without it.
    auto rdma = OpenRdma(options_.machine.transport);
    if (rdma.ok()) rdma_ = *std::move(rdma);
    network_ = MakeInprocNetwork();
    ADDEND_ASSIGN_OR_RETURN(
        agent_, Agent::Create(
                    {.job = options_.job,
                     .node = options_.node_rank ? std::optional(NodeId(node_rank_)) : std::nullopt,
                     .num_nodes = options_.num_nodes,
                     .local_size = options_.local_size,
                     .incarnation = incarnation_,
                     .hostname = Hostname(),
                     .advertise = options_.machine.advertise,
                     .socket = options_.door.socket,
                     .socket_mode = options_.door.socket_mode,
                     .bandwidth_bps = options_.machine.bandwidth_bps,
                     .connect_timeout = options_.machine.connect_timeout,
                     .stall_timeout = options_.stall_timeout,
                     .audit_one_in = options_.audit_one_in,
                     .transport = options_.machine.transport.mode,
                     .wire = options_.wire,
                     .wire_encoding = options_.machine.transport.encoding,
                     .encrypt_data = options_.encrypt_data,
                     .rdma_devices = rdma_.devices,
                     .why_no_rdma = rdma_.why_none,
                     .rdma = options_.machine.transport.rdma,
                     .topology = options_.topology,
                     .intranode = options_.intranode,
                     .deterministic_intranode = options_.deterministic_intranode,
                     .gpudirect = options_.gpudirect},
                    network_, {.machine = machine_.get(), .node_is_free = [this] { FreeNode(); }}));
    const absl::Status status = rdma.ok() ? Serve() : rdma.status();
    if (absl::IsCancelled(status) && stop_->Wait(absl::ZeroDuration()).has_value()) {
      agent_->RefuseTrainers(StoppedStatus(), absl::ZeroDuration());
      return absl::OkStatus();
    }
    if (status.ok()) return status;
    if (options_.door.stay_to_refuse && IsForGood(status)) {
      RefuseUntilStopped(agent_.get(), options_.door, status, stop_);
    } else {
      agent_->RefuseTrainers(status, kRefusalGrace);
    }
    return status;
  }

  // Run() has ended because trainers may give the next agent another rank.
  bool node_is_free() const { return node_is_free_; }

 private:
  absl::Status Serve() {
    ADDEND_RETURN_IF_ERROR(StartEngine());
    AgentService agent_service(agent_.get());
    SummationService summation_service(engine_.get());
    TraceService trace(engine_.get(), [this](JobId job, uint64_t rounds, v1::TraceChunk* chunk) {
      agent_->FillTrace(job, rounds, chunk);
    });
    DiagnosticsService diagnostics;
    ADDEND_ASSIGN_OR_RETURN(
        rpc_, RpcServer::Start({options_.listen.grpc, options_.door.health},
                               {&agent_service, &summation_service, &trace, &diagnostics}));
    // The services above are on this stack: calls have to end first.
    const absl::Cleanup end_calls = [this] {
      engine_->HangUp();
      rpc_.reset();
    };
    prometheus::Registry registry;
    const EngineMetrics engine_metrics(engine_.get());
    const AgentMetrics agent_metrics(agent_.get());
    const auto ready = [this] {
      return ready_.load() ? absl::OkStatus()
                           : absl::UnavailableError("not yet registered with the scheduler");
    };
    ADDEND_ASSIGN_OR_RETURN(const auto http,
                            HttpServer::Start(options_.listen.http.host, options_.listen.http.port,
                                              &registry, ready, {&engine_metrics, &agent_metrics}));
    const Ports ports{{"grpc", rpc_->port()},
                      {"http", http->port()},
                      {"health", rpc_->health_port()},
                      {"data", data_port_}};
    if (!options_.node_rank) ADDEND_RETURN_IF_ERROR(WaitForTrainers(ports));
    if (node_is_free_) return absl::OkStatus();  // the trainer has gone again
    return JoinAndWait(ports);
  }

  absl::Status StartEngine() {
    Engine::Options engine{.shards = options_.shards,
                           .memory_limit_bytes = options_.memory_limit_bytes,
                           .incarnation = incarnation_,
                           .send_limits = SendLimitsFor(options_.machine.bandwidth_bps),
                           .encoding = options_.machine.transport.encoding,
                           .network = network_,
                           .rdma_devices = rdma_.devices,
                           .rdma_options = options_.machine.transport.rdma,
                           .external_slots = nullptr,
                           .machine = machine_.get()};
    if (UsableCpus() < 2) {
      one_loop_ = std::make_unique<OneLoopMachine>(machine_.get(), agent_->loop());
      engine.machine = one_loop_.get();
    }
    engine.external_slots = [slots = agent_->result_slots()](JobId, Generation generation,
                                                             const std::string& name) {
      return slots->Find(generation, name);
    };
    ADDEND_ASSIGN_OR_RETURN(engine_, Engine::Create(std::move(engine)));
    if (!options_.colocated_summation) return absl::OkStatus();
    ADDEND_ASSIGN_OR_RETURN(
        data_port_, engine_->Listen({options_.listen.data.host, options_.listen.data.port}));
    return engine_->ListenInproc();
  }

  // Until a trainer has said the node's rank. CANCELLED: a signal.
  absl::Status WaitForTrainers(const Ports& ports) {
    spdlog::info("waits for trainers of job {} on {}, whose RANK says which node this is",
                 options_.job, options_.door.socket);
    SetReady(true);
    ADDEND_RETURN_IF_ERROR(WritePortFile(options_.port_file, ports));
    std::optional<NodeId> node;
    while (!(node = agent_->node())) {
      if (stop_->Wait(kBetweenLooks)) return absl::CancelledError("stopped without a trainer");
    }
    node_rank_ = node->value();
    return absl::OkStatus();
  }

  absl::Status JoinAndWait(Ports ports) {
    MemberOptions member_options{
        .scheduler = options_.machine.scheduler.ToString(),
        .connect_timeout = options_.machine.connect_timeout,
        .give_up = [this] { return stop_->Wait(absl::ZeroDuration()).has_value(); },
        .on_fatal = [this](absl::Status why) { stop_->RequestStop(std::move(why)); }};
    if (!options_.node_rank) member_options.until_place_is_free = kUntilNodeIsFree;
    std::unique_ptr<SummationMember> server;
    if (options_.colocated_summation) {
      ADDEND_ASSIGN_OR_RETURN(
          server, SummationMember::Join(member_options, ColocatedRegistration(), engine_.get()));
    }
    const uint32_t server_id = server ? server->server_id() : 0;
    ADDEND_ASSIGN_OR_RETURN(auto node,
                            NodeMember::Join(
                                member_options, NodeRegistration(server_id),
                                [this](const v1::NodeUpdate& update) { agent_->OnUpdate(update); },
                                [this](v1::HeartbeatRequest* beat) { agent_->FillBeat(beat); },
                                server ? server->member() : nullptr));
    MemberReports reports(node.get());
    agent_->Begin(node->registration(), ServerId(server_id), &reports);
    SetReady(true);
    if (options_.encrypt_data) {
      spdlog::info("links of this node to other machines are encrypted (by {})",
                   tcp::FastestAesLibrary().name);
    }
    spdlog::info("node {} of job {} listens for {} trainer{} on {} ({})", node_rank_, options_.job,
                 options_.local_size, options_.local_size == 1 ? "" : "s", options_.door.socket,
                 TargetName());
    if (options_.numbered_by_scheduler) {
      ports["node_rank"] = static_cast<uint16_t>(node_rank_);  // for whoever starts the trainers
    }
    ADDEND_RETURN_IF_ERROR(WritePortFile(options_.port_file, ports));
    const absl::Status why = stop_->WaitUntilStopped();
    SetReady(false);
    // Trainers that are still there learn now that their agent goes; the scheduler tells the other
    // nodes.
    agent_->RefuseTrainers(why.ok() ? StoppedStatus() : why, absl::ZeroDuration());
    node->Flush(absl::Seconds(1));
    node->Leave();
    if (server) server->Leave();
    agent_->End();
    return why;
  }

  void SetReady(bool ready) {
    ready_ = ready;
    rpc_->SetReady(ready);
  }

  // On the agent's loop.
  void FreeNode() {
    node_is_free_ = true;
    stop_->RequestStop(absl::OkStatus());
  }

  // The reason for the trainers after a signal.
  absl::Status StoppedStatus() const {
    return MakeFailure(FailureKind::kTemporary,
                       absl::StrFormat("the agent of node %d was stopped", node_rank_));
  }

  v1::RegisterServerRequest ColocatedRegistration() const {
    auto request = ServerRegistration(options_.machine, rdma_.devices, rpc_->port(), data_port_,
                                      options_.memory_limit_bytes);
    request.set_colocated_job(options_.job);
    request.set_colocated_node(node_rank_);
    request.set_join_proof(options_.join_proof);
    return request;
  }

  v1::RegisterNodeRequest NodeRegistration(uint32_t server_id) const {
    v1::RegisterNodeRequest request = RegistrationOf(options_, incarnation_, rpc_->port());
    request.set_node_rank(node_rank_);
    request.set_colocated_server_id(server_id);
    return request;
  }

  const AgentOptions options_;
  StopSignal* const stop_;
  const Incarnation incarnation_;
  uint32_t node_rank_ = options_.node_rank.value_or(0);
  std::atomic<bool> ready_{false};
  std::atomic<bool> node_is_free_{false};
  uint16_t data_port_ = 0;
  RdmaHere rdma_;
  const std::unique_ptr<Machine> machine_;
  std::shared_ptr<InprocNetwork> network_;
  // The engine goes first: it may still hold contributions in the agent's memory.
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<OneLoopMachine> one_loop_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RpcServer> rpc_;
};

// The node's number, which the scheduler gives. Others measure the way to this machine meanwhile:
// its port answers them, and probes of its health.
absl::StatusOr<uint32_t> NumberFromScheduler(const AgentOptions& options, Incarnation incarnation,
                                             StopSignal* stop) {
  DiagnosticsService diagnostics;
  ADDEND_ASSIGN_OR_RETURN(
      const auto rpc, RpcServer::Start({options.listen.grpc, options.door.health}, {&diagnostics}));
  return AskForNodeRank({.scheduler = options.machine.scheduler.ToString(),
                         .connect_timeout = options.machine.connect_timeout,
                         .give_up = [stop] { return stop->Wait(absl::ZeroDuration()).has_value(); },
                         .on_fatal = [](const absl::Status&) {}},
                        options.stall_timeout, RegistrationOf(options, incarnation, rpc->port()));
}

absl::Status Serve() {
  DropPrivileges();
  StopSignal stop;
  auto options = ReadAgentOptions();
  absl::Status status = options.status();
  if (status.ok()) {
    status = StartLogging({.process = "agent", .job = options->job, .node = options->node_rank});
  }
  if (!status.ok()) return RefuseWithoutOptions(status, &stop);
  const auto tls = StartTls(PlainText::kIfAskedFor);
  if (!tls.ok()) return RefuseWithoutOptions(tls.status(), &stop);
  for (;;) {
    const Incarnation incarnation = NewIncarnation();
    if (options->numbered_by_scheduler) {
      const auto rank = NumberFromScheduler(*options, incarnation, &stop);
      if (absl::IsCancelled(rank.status())) return absl::OkStatus();
      if (!rank.ok()) return RefuseWithoutOptions(rank.status(), &stop);
      options->node_rank = *rank;
    }
    AgentProcess process(*options, incarnation, &stop);
    const absl::Status done = process.Run();
    if (!done.ok() || !process.node_is_free() || stop.Wait(absl::ZeroDuration())) return done;
    stop.Resume();
  }
}

// Of flags that cannot be read.
absl::Status RefuseWrongOptions(const absl::Status& why) {
  DropPrivileges();
  StopSignal stop;
  return RefuseWithoutOptions(why, &stop);
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  return addend::RunProgram(
      {"addend-agent", "The communication service of one node of a training job.",
       addend::RefuseWrongOptions},
      argc, argv, [] { return addend::Serve(); });
}
