// What members do, and the steps of all.
#include "bench/fake_fleet.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/fake_calls.h"
#include "lib/auth/secret.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/wire_format.h"
#include "lib/member/protocols.h"
#include "lib/rpc/client.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend {
namespace {

constexpr size_t kJoinsAtOnce = 64;
constexpr absl::Duration kCallDeadline = absl::Seconds(60);
constexpr double kGbps = 1e9;

using Async = class v1::Scheduler::Stub::async;

std::string HostOf(uint32_t machine) {
  return absl::StrFormat("10.%d.%d.%d", machine >> 16 & 255, machine >> 8 & 255, machine & 255);
}

}  // namespace

struct FakeFleet::State {
  template <typename Request, typename Response>
  using Method = void (Async::*)(grpc::ClientContext*, const Request*, Response*,
                                 std::function<void(grpc::Status)>);
  // A call under way.
  template <typename Request, typename Response>
  struct UnaryCall {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  // A machine of the cluster: a CPU server, or a node with its colocated server.
  struct Machine {
    explicit Machine(State* fleet) : fleet(fleet) {}
    void Connect();
    void RegisterServer(std::function<void()> done);
    void RegisterNode(std::function<void()> done);
    void OnServerUpdate(const std::string& bytes);
    void OnNodeUpdate(const std::string& bytes);
    void Beat();

    State* const fleet;
    uint32_t number = 0;
    bool is_node = false;
    std::atomic<bool> has_joined{false};
    std::atomic<bool> dead{false};
    v1::MemberId server_id;
    v1::MemberId node_id;
    std::unique_ptr<v1::Scheduler::Stub> stub;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<WatchStream> server_watch;
    std::unique_ptr<WatchStream> node_watch;
    // ---- of a node, as its watch has told ----
    // Thousands of nodes that all kept the plan would take more memory than a machine has.
    Mutex mu;
    uint32_t generation ABSL_GUARDED_BY(mu) = 0;
    bool ready ABSL_GUARDED_BY(mu) = false;
    std::vector<bool> is_planned ABSL_GUARDED_BY(mu);  // by tensor
    size_t planned ABSL_GUARDED_BY(mu) = 0;            // tensors
    std::set<uint32_t> to_move ABSL_GUARDED_BY(mu);    // those of a killed server
  };

  // `done` gets the status and the response.
  template <typename Request, typename Response, typename Done>
  void Call(v1::Scheduler::Stub* stub, Method<Request, Response> method, Request request,
            Done done) {
    const auto call = std::make_shared<UnaryCall<Request, Response>>();
    call->request = std::move(request);
    SetDeadline(&call->context, kCallDeadline);
    ++open_calls;
    (stub->async()->*method)(&call->context, &call->request, &call->response,
                             [this, call, done = std::move(done)](const grpc::Status& status) {
                               done(FromGrpc(status), call->response);
                               EndCall();
                             });
  }
  void EndCall() {
    --open_calls;
    board.Note();
  }
  // Of the first node, which knows the same as all others.
  void KeepPlan(const std::string& bytes);
  void RunHeartbeats();
  absl::Status AwaitNodes(absl::Duration patience, const std::atomic<uint32_t>& count,
                          const std::string& what) {
    return board.Await(
        patience, [&] { return count == options.nodes; },
        [&] { return absl::StrFormat("%d of %d nodes %s", count.load(), options.nodes, what); });
  }
  std::function<void(absl::Status)> OnWatchEnd(std::string name) {
    return [this, name = std::move(name)](const absl::Status& why) {
      board.Fail(absl::UnavailableError("the watch of " + name + " has ended: " + Message(why)));
    };
  }
  auto OrFail(std::string what) {
    return [this, what = std::move(what)](const absl::Status& status, const auto&...) {
      if (!status.ok()) board.Fail(absl::Status(status.code(), what + ": " + Message(status)));
    };
  }

  Options options;
  Board board;
  std::deque<Machine> machines;
  std::atomic<bool> stopping{false};
  std::atomic<double> lease_s{5};
  std::atomic<size_t> open_calls{0};
  std::atomic<uint32_t> joined{0};
  std::atomic<uint32_t> ready{0};
  std::atomic<uint32_t> planned{0};
  std::atomic<uint32_t> moved{0};  // nodes that know of the new owners
  std::thread heartbeats;
  Mutex plan_mu;
  std::map<uint32_t, std::set<uint32_t>> owners ABSL_GUARDED_BY(plan_mu);  // by tensor: its servers
};

void FakeFleet::State::Machine::Connect() {
  channel = Dial(fleet->options.scheduler, /*identity=*/nullptr, kMaxUpdateBytes);
  stub = v1::Scheduler::NewStub(channel);
}

void FakeFleet::State::Machine::RegisterServer(std::function<void()> done) {
  v1::RegisterServerRequest request;
  FillVersions(&request);
  request.set_incarnation(uint64_t{1} << 40 | number);
  request.set_control_address(HostOf(number) + ":7070");
  v1::DataEndpoint* const endpoint = request.add_endpoints();
  endpoint->set_transport("tcp");
  endpoint->set_host(HostOf(number));
  endpoint->set_port(7171);
  request.set_shards(2);
  request.set_bandwidth_bps(100 * kGbps);
  request.set_hostname(absl::StrFormat("machine-%d", number));
  request.set_member_key(std::string(auth::TextOf(auth::NewSecret())));
  if (is_node) {
    request.set_colocated_job("scale");
    request.set_colocated_node(number);
  }
  server_id.set_incarnation(request.incarnation());
  server_id.set_key(request.member_key());
  fleet->Call(stub.get(), &Async::RegisterServer, std::move(request),
              [this, done = std::move(done)](const absl::Status& status,
                                             const v1::RegisterServerResponse& response) {
                if (!status.ok()) return fleet->board.Fail(status);
                server_id.set_server_id(response.server_id());
                fleet->lease_s = response.lease_s();
                server_watch = std::make_unique<WatchStream>(
                    [this](const std::string& update) { OnServerUpdate(update); },
                    fleet->OnWatchEnd(absl::StrFormat("server %d", response.server_id())));
                server_watch->Start(channel, "WatchServer", server_id);
                if (!is_node) return done();
                RegisterNode(done);
              });
}

void FakeFleet::State::Machine::RegisterNode(std::function<void()> done) {
  v1::RegisterNodeRequest request;
  FillVersions(&request);
  request.set_incarnation(server_id.incarnation());
  request.set_job("scale");
  request.set_node_rank(number);
  request.mutable_settings()->set_num_nodes(fleet->options.nodes);
  request.mutable_settings()->set_local_size(1);
  request.mutable_settings()->set_on_node_loss("fail");
  request.mutable_settings()->set_reduction_order("node");
  request.set_hostname(absl::StrFormat("machine-%d", number));
  request.set_control_address(HostOf(number) + ":7070");
  request.set_bandwidth_bps(100 * kGbps);
  request.set_colocated_server_id(server_id.server_id());
  request.set_takes_server_changes(true);
  request.set_member_key(std::string(auth::TextOf(auth::NewSecret())));
  node_id.set_node_rank(number);
  node_id.set_incarnation(request.incarnation());
  node_id.set_key(request.member_key());
  fleet->Call(stub.get(), &Async::RegisterNode, std::move(request),
              [this, done = std::move(done)](const absl::Status& status,
                                             const v1::RegisterNodeResponse& response) {
                if (!status.ok()) return fleet->board.Fail(status);
                node_id.set_job_id(response.job_id());
                {
                  const MutexLock lock(&mu);
                  generation = response.generation();
                }
                node_watch = std::make_unique<WatchStream>(
                    [this](const std::string& update) { OnNodeUpdate(update); },
                    fleet->OnWatchEnd(absl::StrFormat("node %d", number)));
                node_watch->Start(channel, "WatchNode", node_id);
                done();
              });
}

void FakeFleet::State::Machine::OnServerUpdate(const std::string& bytes) {
  v1::ServerUpdate update;
  update.ParseFromString(bytes);
  v1::AckReservationRequest ack;
  *ack.mutable_member() = server_id;
  ack.set_update_id(update.update_id());
  ack.set_free_bytes(UINT64_MAX);
  fleet->Call(stub.get(), &Async::AckReservation, std::move(ack),
              fleet->OrFail("an acknowledgement"));
}

void FakeFleet::State::Machine::OnNodeUpdate(const std::string& bytes) {
  const BriefUpdate update = ReadBriefly(bytes);
  if (update.state == v1::FAILED) {
    return fleet->board.Fail(absl::AbortedError("the job has failed: " + update.reason));
  }
  bool now_ready = false, now_planned = false, now_moved = false;
  {
    const MutexLock lock(&mu);
    generation = update.generation;
    if (update.state == v1::READY && !std::exchange(ready, true)) now_ready = true;
    const size_t all = fleet->options.tensor_elements.size();
    const bool was_planned = planned == all, had_to_move = !to_move.empty();
    for (const uint32_t tensor : update.tensors) {
      if (tensor >= is_planned.size()) is_planned.resize(tensor + 1);
      if (!is_planned[tensor]) ++planned;
      is_planned[tensor] = true;
      to_move.erase(tensor);
    }
    now_planned = !was_planned && planned == all;
    now_moved = had_to_move && to_move.empty();
  }
  if (number == 0) fleet->KeepPlan(bytes);
  if (update.change != 0) {
    for (const bool following : {false, true}) {
      v1::AckChangeRequest ack;
      *ack.mutable_member() = node_id;
      ack.set_generation(update.generation);
      ack.set_change(update.change);
      ack.set_following(following);
      fleet->Call(stub.get(), &Async::AckChange, std::move(ack),
                  fleet->OrFail("an acknowledgement of a change"));
    }
  }
  if (now_ready) ++fleet->ready;
  if (now_planned) ++fleet->planned;
  if (now_moved) ++fleet->moved;
  if (now_ready || now_planned || now_moved) fleet->board.Note();
}

void FakeFleet::State::Machine::Beat() {
  v1::HeartbeatRequest request;
  *request.mutable_member() = server_id;
  request.set_activity("sums for 1 job");
  request.mutable_traffic()->set_network_bytes_sent(1 << 30);
  const auto on_answer = [this](const absl::Status& status, const auto&) {
    if (status.ok() || dead) return;
    fleet->board.Fail(absl::Status(
        status.code(), absl::StrFormat("a heartbeat of machine %d: %s", number, Message(status))));
  };
  if (!is_node) return fleet->Call(stub.get(), &Async::Heartbeat, std::move(request), on_answer);
  v1::ColocatedBeat* const colocated = request.mutable_colocated();
  *colocated->mutable_member() = server_id;
  *colocated->mutable_traffic() = request.traffic();
  colocated->set_activity(request.activity());
  *request.mutable_member() = node_id;
  {
    const MutexLock lock(&mu);
    request.set_generation(generation);
  }
  request.set_activity("training, round 812");
  request.set_links("3 tcp");
  request.mutable_rounds()->set_rounds(812);
  request.mutable_wire_bytes()->set_contribution_bytes(1 << 30);
  request.mutable_wire_bytes()->set_contribution_wire_bytes(1 << 30);
  fleet->Call(stub.get(), &Async::Heartbeat, std::move(request), on_answer);
}

FakeFleet::FakeFleet(Options options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  const Options& sizes = state_->options;
  for (uint32_t i = 0; i < sizes.nodes + sizes.cpu_servers; ++i) {
    State::Machine& machine = state_->machines.emplace_back(state_.get());
    machine.number = i;
    machine.is_node = i < sizes.nodes;
  }
  state_->heartbeats = std::thread([this] { state_->RunHeartbeats(); });
}

FakeFleet::~FakeFleet() {
  state_->stopping = true;
  state_->heartbeats.join();
  for (State::Machine& machine : state_->machines) {
    if (machine.server_watch) machine.server_watch->Stop();
    if (machine.node_watch) machine.node_watch->Stop();
  }
  // Each call has a deadline.
  state_->board.AwaitEnd([this] { return state_->open_calls == 0; });
}

absl::Status FakeFleet::Join(absl::Duration patience) {
  State& fleet = *state_;
  std::vector<State::Machine*> joining;
  for (State::Machine& machine : fleet.machines) joining.push_back(&machine);
  // CPU servers first: the plan of the first tensor counts them.
  std::stable_partition(joining.begin(), joining.end(), [](auto* m) { return !m->is_node; });
  const auto await = [&](size_t joined) {
    return fleet.board.Await(
        patience, [&] { return fleet.joined >= joined; },
        [&] {
          return absl::StrFormat("%d of %d machines have joined", fleet.joined.load(),
                                 joining.size());
        });
  };
  for (size_t i = 0; i < joining.size(); ++i) {
    ADDEND_RETURN_IF_ERROR(await(i < kJoinsAtOnce ? 0 : i - kJoinsAtOnce + 1));
    joining[i]->Connect();
    joining[i]->RegisterServer([&fleet, machine = joining[i]] {
      machine->has_joined = true;
      ++fleet.joined;
      fleet.board.Note();
    });
  }
  return await(joining.size());
}

absl::Status FakeFleet::Begin(absl::Duration patience) {
  for (State::Machine& machine : state_->machines) {
    if (!machine.is_node) continue;
    v1::ReportTrainersRequest request;
    *request.mutable_member() = machine.node_id;
    {
      const MutexLock lock(&machine.mu);
      request.set_generation(machine.generation);
    }
    request.set_initialised(1);
    state_->Call(machine.stub.get(), &Async::ReportTrainers, std::move(request),
                 state_->OrFail("a report of trainers"));
  }
  return state_->AwaitNodes(patience, state_->ready, "know that the job is ready");
}

absl::Status FakeFleet::Declare(absl::Duration patience) {
  v1::DeclareRequest tensors;
  for (size_t i = 0; i < state_->options.tensor_elements.size(); ++i) {
    v1::TensorDescriptor* const tensor = tensors.add_tensors();
    tensor->set_name(absl::StrFormat("gradient.%d", i));
    tensor->set_dtype(v1::FLOAT32);
    tensor->add_shape(static_cast<int64_t>(state_->options.tensor_elements[i]));
    tensor->set_op(v1::SUM);
    tensor->set_reduction_tree(ToString(NumericsIn(state_->options.nodes, {})));
    tensors.add_numbers(static_cast<uint32_t>(i + 1));
  }
  // All nodes declare the same.
  const grpc::Slice same(tensors.SerializeAsString());
  for (State::Machine& machine : state_->machines) {
    if (!machine.is_node) continue;
    v1::DeclareRequest request;
    *request.mutable_member() = machine.node_id;
    {
      const MutexLock lock(&machine.mu);
      request.set_generation(machine.generation);
    }
    ++state_->open_calls;
    CallWithSlices(machine.channel, "Declare", {grpc::Slice(request.SerializeAsString()), same},
                   kCallDeadline, [state = state_.get()](const absl::Status& status) {
                     state->OrFail("a declaration")(status);
                     state->EndCall();
                   });
  }
  return state_->AwaitNodes(patience, state_->planned, "know the plan");
}

absl::Status FakeFleet::KillServer(absl::Duration patience) {
  State::Machine* victim = nullptr;
  std::set<uint32_t> concerned;
  {
    const MutexLock lock(&state_->plan_mu);
    for (State::Machine& machine : state_->machines) {
      if (machine.is_node || machine.dead || !machine.has_joined) continue;
      std::set<uint32_t> owned;
      for (const auto& [tensor, servers] : state_->owners) {
        if (servers.contains(machine.server_id.server_id())) owned.insert(tensor);
      }
      if (owned.size() <= concerned.size()) continue;
      concerned = std::move(owned);
      victim = &machine;
    }
  }
  if (victim == nullptr) return absl::FailedPreconditionError("no CPU server has a partition");
  victim->dead = true;
  state_->moved = 0;
  for (State::Machine& machine : state_->machines) {
    const MutexLock lock(&machine.mu);
    machine.to_move = concerned;
  }
  victim->server_watch->Stop();
  State::Machine& node = state_->machines.front();
  v1::ReportServerLostRequest request;
  *request.mutable_member() = node.node_id;
  {
    const MutexLock lock(&node.mu);
    request.set_generation(node.generation);
  }
  request.set_server_id(victim->server_id.server_id());
  request.set_reason("connection refused");
  state_->Call(node.stub.get(), &Async::ReportServerLost, std::move(request),
               state_->OrFail("a report of a lost server"));
  return state_->AwaitNodes(patience, state_->moved, "know the new owners");
}

void FakeFleet::State::KeepPlan(const std::string& bytes) {
  v1::NodeUpdate update;
  update.ParseFromString(bytes);
  const MutexLock lock(&plan_mu);
  for (const v1::TensorPlan& plan : update.tensors()) {
    owners[plan.tensor_id()] = {plan.servers().begin(), plan.servers().end()};
  }
}

// Each machine in its turn, evenly over a third of the lease.
void FakeFleet::State::RunHeartbeats() {
  absl::Time next = SteadyNow();
  for (size_t i = 0; !stopping; i = (i + 1) % machines.size()) {
    Machine& machine = machines[i];
    if (machine.has_joined && !machine.dead) machine.Beat();
    const absl::Duration interval = absl::Seconds(lease_s.load()) / 3;
    next = std::max(next + interval / static_cast<double>(machines.size()), SteadyNow() - interval);
    if (next > SteadyNow()) absl::SleepFor(next - SteadyNow());
  }
}

absl::Status FakeFleet::Rest(absl::Duration duration) {
  const absl::Time end = SteadyNow() + duration;
  return state_->board.Await(
      duration + kCallDeadline, [&] { return SteadyNow() >= end; },
      [] { return "no member beats"; });
}

uint64_t FakeFleet::node_update_bytes() const {
  uint64_t sum = 0;
  for (const State::Machine& machine : state_->machines) {
    if (machine.node_watch) sum += machine.node_watch->bytes();
  }
  return sum;
}

uint64_t FakeFleet::server_update_bytes() const {
  uint64_t sum = 0;
  for (const State::Machine& machine : state_->machines) {
    if (machine.server_watch) sum += machine.server_watch->bytes();
  }
  return sum;
}

size_t FakeFleet::members() const {
  size_t sum = 0;
  for (const State::Machine& machine : state_->machines) {
    if (machine.server_watch) sum += machine.is_node ? 2 : 1;
  }
  return sum;
}

}  // namespace addend
