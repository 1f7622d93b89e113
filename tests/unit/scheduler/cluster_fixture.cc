#include "tests/unit/scheduler/cluster_fixture.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/version.h"
#include "lib/summation/table_bytes.h"
#include "services/scheduler/planner.h"

namespace addend {

uint64_t FakeServer::held_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [job_id, job] : jobs) {
    for (const auto& [id, tensor] : job.tensors) {
      for (const uint32_t partition : tensor.partitions()) {
        bytes += AccumulatorBytes(DTypeOf(tensor.tensor()),
                                  ElementsOfPartition(ElementsOf(tensor.tensor()),
                                                      tensor.partition_elements(), partition),
                                  SumAccumulators(job.num_nodes)) +
                 PartitionTableBytes(job.num_nodes);
      }
    }
  }
  return bytes;
}

v1::MemberId FakeServer::member() const {
  v1::MemberId member;
  member.set_server_id(id);
  member.set_incarnation(info.incarnation());
  member.set_key(info.member_key());
  return member;
}

namespace {

// Adds the partitions that are not held yet.
void Merge(const v1::TensorReservation& added, v1::TensorReservation* held) {
  if (held->partitions().empty()) {
    *held = added;
    return;
  }
  for (int i = 0; i < added.partitions_size(); ++i) {
    const auto& known = held->partitions();
    if (std::find(known.begin(), known.end(), added.partitions(i)) != known.end()) continue;
    held->add_partitions(added.partitions(i));
    held->add_shards(added.shards(i));
  }
}

// Takes those out that `gone` names; an entry without partitions is gone as a whole.
template <typename Gone>
void Forget(FakeServer::HeldJob* job, uint32_t tensor_id, Gone gone) {
  const auto tensor = job->tensors.find(tensor_id);
  if (tensor == job->tensors.end()) return;
  v1::TensorReservation kept = tensor->second;
  kept.clear_partitions();
  kept.clear_shards();
  for (int i = 0; i < tensor->second.partitions_size(); ++i) {
    if (gone(tensor->second.partitions(i))) continue;
    kept.add_partitions(tensor->second.partitions(i));
    kept.add_shards(tensor->second.shards(i));
  }
  if (kept.partitions().empty()) {
    job->tensors.erase(tensor);
  } else {
    tensor->second = kept;
  }
}

bool Contains(const google::protobuf::RepeatedField<uint32_t>& list, uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

v1::AckReservationRequest FakeServer::Take(const v1::ServerUpdate& update) {
  announced.Note(update);
  drained = drained || update.drained();
  if (update.full()) {
    std::map<uint64_t, HeldJob> kept;
    for (const v1::JobReservation& job : update.jobs()) {
      HeldJob held = std::move(jobs[job.job_id()]);
      if (held.generation > job.generation()) held = HeldJob();  // an old store
      std::erase_if(held.tensors, [&job](const auto& tensor) {
        for (const auto& reserve : job.reserve()) {
          if (reserve.tensor_id() == tensor.first) return false;
        }
        return true;
      });
      held.relays.clear();
      for (const auto& reserve : job.reserve()) {
        Forget(&held, reserve.tensor_id(),
               [&](uint32_t index) { return !Contains(reserve.partitions(), index); });
      }
      kept[job.job_id()] = std::move(held);
    }
    jobs = std::move(kept);
  }
  v1::AckReservationRequest answer;
  for (const v1::JobReservation& job : update.jobs()) {
    if (job.release_all()) {
      jobs.erase(job.job_id());
      continue;
    }
    EXPECT_EQ(job.key().size(), 32u);
    HeldJob& held = jobs[job.job_id()];
    held.num_nodes = job.num_nodes();
    held.failed = job.failed();
    held.lost_nodes.assign(job.lost_nodes().begin(), job.lost_nodes().end());
    EXPECT_GE(job.generation(), held.generation);
    if (job.generation() > held.generation) {
      held.generation = job.generation();
      held.tensors.clear();
      held.relays.clear();
    }
    for (const v1::ServerInfo& peer : job.peers()) held.peers[peer.server_id()] = peer;
    for (const v1::RelayReservation& relay : job.relay()) {
      if (relay.orders_size() > 0 && capacity_for_relays == 0) {
        v1::RefusedTensor* refused = answer.add_refused();
        refused->set_job_id(job.job_id());
        refused->set_tensor_id(relay.tensor().tensor_id());
        refused->set_reason("no memory for relays");
        continue;
      }
      held.relays[relay.tensor().tensor_id()] = relay;
    }
    for (const uint32_t tensor : job.release_tensors()) {
      const size_t released = held.tensors.erase(tensor) + held.relays.erase(tensor);
      EXPECT_GE(released, 1u) << "released what it does not hold";
    }
    for (const v1::PartitionSet& set : job.release_partitions()) {
      Forget(&held, set.tensor_id(),
             [&](uint32_t index) { return Contains(set.partitions(), index); });
    }
    for (const v1::HandOver& order : job.hand_over()) {
      for (const uint32_t index : order.partitions().partitions()) {
        handed_over[{order.partitions().tensor_id(), index}] = order.version();
      }
    }
    for (const v1::TensorReservation& tensor : job.reserve()) {
      v1::TensorReservation& known = held.tensors[tensor.tensor_id()];
      const v1::TensorReservation before = known;
      Merge(tensor, &known);
      if (held_bytes() <= capacity) continue;
      known = before;
      if (known.partitions().empty()) held.tensors.erase(tensor.tensor_id());
      v1::RefusedTensor* refused = answer.add_refused();
      refused->set_job_id(job.job_id());
      refused->set_tensor_id(tensor.tensor_id());
      refused->set_reason("no memory");
    }
  }
  const bool limited = capacity != ~uint64_t{0};
  answer.set_free_bytes(limited ? capacity - held_bytes() : ~uint64_t{0});
  answer.set_update_id(update.update_id());
  return answer;
}

v1::MemberId FakeNode::member() const {
  v1::MemberId member;
  member.set_job_id(job_id);
  member.set_node_rank(info.node_rank());
  member.set_incarnation(info.incarnation());
  member.set_key(info.member_key());
  return member;
}

void FakeNode::Take(const v1::NodeUpdate& update) {
  updates.push_back(update);
  announced.Note(update);
  memory.Note(update);
  EXPECT_GE(update.generation(), generation);
  EXPECT_GE(update.plan_version(), plan_version);
  if (update.full()) trainers_said = false;
  if (update.full() || update.generation() > generation) {
    plans.clear();
    errors.clear();
    servers.clear();
  }
  generation = update.generation();
  state = update.state();
  reason = update.reason();
  exit_code = update.exit_code();
  failed_kind = update.failed_kind();
  plan_version = update.plan_version();
  if (change != update.change()) connected_said = following_said = false;
  change = update.change();
  for (const uint32_t id : update.removed()) {
    EXPECT_EQ(std::erase_if(plans, [id](const auto& p) { return p.second.tensor_id() == id; }), 1u);
  }
  if (update.servers_size() > 0 && !update.servers_are_changes()) servers.clear();
  for (const uint32_t gone : update.servers_gone()) servers.erase(gone);
  for (const auto& server : update.servers()) servers[server.server_id()] = server;
  for (const auto& plan : update.tensors()) {
    for (const uint32_t server : plan.servers()) {
      EXPECT_TRUE(servers.contains(server)) << "a plan names a server that was not announced";
    }
    for (const auto& move : plan.moves()) {
      EXPECT_TRUE(servers.contains(move.server())) << "a move to a server that was not announced";
    }
    plans[plan.tensor().name()] = plan;
  }
  for (const auto& error : update.errors()) errors[error.name()] = error;
}

ClusterTest::ClusterTest() { Start(); }

void ClusterTest::Start() {
  Membership::Options options;
  options.version = "test";
  options.store = "memory";
  options.make_key = [] { return std::string(32, 't'); };
  options.token_clock = [this] { return now_; };
  options.servers_digest = servers_digest_;
  options.first_job_number = first_job_;
  membership_ = std::make_unique<Membership>(options, now_);
}

void ClusterTest::Apply(Decision decision) {
  ASSERT_TRUE(store_.Apply(decision.writes).ok());
  reasons_.insert(reasons_.end(), decision.reasons.begin(), decision.reasons.end());
  Deliver(decision);
  SayTrainers();
  FollowMoves();
}

void ClusterTest::SayTrainers() {
  for (auto& node : nodes_) {
    if (node->watch == 0 || node->trainers_said) continue;
    node->trainers_said = true;
    ReportTrainers(*node);
  }
}

void ClusterTest::ReportTrainers(const FakeNode& node) {
  v1::ReportTrainersRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  request.set_initialised(node.trainers);
  auto [status, decision] = membership_->ReportTrainers(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

bool ClusterTest::HandedOver(const v1::TensorPlan& plan) const {
  for (const v1::PartitionMove& move : plan.moves()) {
    const uint32_t owner = plan.servers(static_cast<int>(move.partition()));
    for (const auto& server : servers_) {
      if (server->id != owner) continue;
      const auto order = server->handed_over.find({plan.tensor_id(), move.partition()});
      if (order == server->handed_over.end() || order->second < move.version()) return false;
    }
  }
  return true;
}

void ClusterTest::FollowMoves() {
  if (following_) return;
  following_ = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& node : nodes_) {
      if (!node->acks || node->watch == 0 || node->change == 0) continue;
      if (!node->connected_said) {
        changed = node->connected_said = true;
        AckChange(*node, /*following=*/false);
      }
      bool follows = node->change != 0;
      for (const auto& [name, plan] : node->plans) follows = follows && HandedOver(plan);
      if (!follows || node->following_said) continue;
      for (auto& [name, plan] : node->plans) {
        plan.mutable_versions()->Resize(
            plan.moves().empty() ? plan.versions_size() : plan.servers_size(), 0);
        for (const v1::PartitionMove& move : plan.moves()) {
          plan.set_servers(static_cast<int>(move.partition()), move.server());
          plan.set_shards(static_cast<int>(move.partition()), move.shard());
          plan.set_versions(static_cast<int>(move.partition()), move.version());
        }
        plan.clear_moves();
      }
      changed = node->following_said = true;
      AckChange(*node, /*following=*/true);
    }
  }
  following_ = false;
}

void ClusterTest::AckChange(const FakeNode& node, bool following) {
  v1::AckChangeRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  request.set_change(node.change);
  request.set_following(following);
  auto [status, decision] = membership_->AckChange(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

absl::Status ClusterTest::Drain(const FakeServer& server) {
  v1::DrainRequest request;
  request.set_server_id(server.id);
  auto [status, decision] = membership_->Drain(now_, request);
  Apply(std::move(decision));
  return status;
}

void ClusterTest::ReportTrouble(const FakeServer& server, uint64_t job, const FakeServer& other) {
  v1::HeartbeatRequest request;
  *request.mutable_member() = server.member();
  v1::RelayTrouble* const trouble = request.add_troubles();
  trouble->set_job_id(job);
  trouble->set_server_id(other.id);
  trouble->set_reason("nobody answers there");
  auto [status, decision] = membership_->Heartbeat(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Deliver(const Decision& decision) {
  for (const WatchEnd& end : decision.ended) {
    for (auto& server : servers_) {
      if (server->watch == end.watch) server->watch = 0;
    }
    for (auto& node : nodes_) {
      if (node->watch == end.watch) node->watch = 0;
    }
  }
  for (const NodeSend& send : decision.to_nodes) {
    ASSERT_NE(send.watch, 0u);
    for (auto& node : nodes_) {
      if (node->watch == send.watch) node->Take(*send.update);
    }
  }
  for (const ServerSend& send : decision.to_servers) {
    ASSERT_NE(send.watch, 0u);
    for (auto& server : servers_) {
      if (server->watch != send.watch) continue;
      server->updates.push_back(*send.update);
      if (server->answers) Answer(server.get());
    }
  }
}

void ClusterTest::Answer(FakeServer* server) {
  v1::AckReservationRequest answer = server->Take(server->updates.back());
  *answer.mutable_member() = server->member();
  auto [status, decision] = membership_->AckReservation(now_, answer);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

FakeServer& ClusterTest::AddCpuServer(uint64_t memory_limit, double bandwidth_bps,
                                      uint64_t job_memory_limit) {
  auto server = std::make_unique<FakeServer>();
  FakeServer* added = server.get();
  added->info.set_incarnation(next_++);
  added->info.set_protocol_version(kProtocolVersion);
  added->info.set_member_key(kKey);
  if (speaks_.has_frame()) *added->info.mutable_protocols() = speaks_;
  added->info.set_shards(2);
  added->info.set_hostname(absl::StrFormat("cpu%d", servers_.size()));
  added->info.set_control_address(absl::StrFormat("cpu%d:7071", servers_.size()));
  added->info.set_memory_limit_bytes(memory_limit);
  added->info.set_job_memory_limit_bytes(job_memory_limit);
  added->info.set_bandwidth_bps(bandwidth_bps);
  added->info.add_endpoints()->set_port(7072);
  if (memory_limit != 0) added->capacity = memory_limit;
  added->answers = new_servers_answer_;
  servers_.push_back(std::move(server));
  EXPECT_TRUE(Register(added).ok());
  Watch(added);
  return *added;
}

v1::RegisterNodeRequest ClusterTest::NodeRequest(const std::string& job, uint32_t rank,
                                                 uint32_t num_nodes) {
  v1::RegisterNodeRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_member_key(kKey);
  request.set_incarnation(next_++);
  request.set_job(job);
  request.set_node_rank(rank);
  request.set_hostname(absl::StrFormat("gpu%d", rank));
  if (rank < places_.size()) request.set_place(places_[rank]);
  request.set_control_address(absl::StrFormat("10.0.%d.%d:7270", rank / 200, rank % 200 + 1));
  request.mutable_settings()->set_num_nodes(num_nodes);
  request.mutable_settings()->set_local_size(1);
  request.mutable_settings()->set_partition_bytes(partition_bytes_);
  request.mutable_settings()->set_on_node_loss(on_node_loss_);
  request.set_takes_server_changes(rank % 2 == 0 ||
                                   num_nodes % 2 == 0);  // or jobs with older agents
  return request;
}

FakeNode& ClusterTest::AddNode(const std::string& job, uint32_t rank, uint32_t num_nodes,
                               bool colocated) {
  auto node = std::make_unique<FakeNode>();
  FakeNode* added = node.get();
  added->info = NodeRequest(job, rank, num_nodes);
  if (colocated) {
    auto server = std::make_unique<FakeServer>();
    FakeServer* own = server.get();
    own->info.set_incarnation(added->info.incarnation());
    own->info.set_protocol_version(kProtocolVersion);
    own->info.set_member_key(kKey);
    own->info.set_shards(1);
    own->info.set_hostname(added->info.hostname());
    own->info.set_colocated_job(job);
    own->info.set_colocated_node(rank);
    if (colocated_speaks_.has_frame()) *own->info.mutable_protocols() = colocated_speaks_;
    own->info.add_endpoints()->set_port(7073);
    servers_.push_back(std::move(server));
    EXPECT_TRUE(Register(own).ok());
    Watch(own);
    added->info.set_colocated_server_id(own->id);
  }
  nodes_.push_back(std::move(node));
  EXPECT_TRUE(Register(added).ok());
  Watch(added);
  return *added;
}

std::vector<FakeNode*> ClusterTest::AddJob(const std::string& job, uint32_t num_nodes,
                                           bool colocated) {
  std::vector<FakeNode*> nodes;
  for (uint32_t rank = 0; rank < num_nodes; ++rank) {
    nodes.push_back(&AddNode(job, rank, num_nodes, colocated));
  }
  for (const FakeNode* node : nodes) EXPECT_EQ(node->state, v1::READY);
  return nodes;
}

absl::Status ClusterTest::Register(FakeNode* node) {
  auto [response, decision] = membership_->RegisterNode(now_, node->info);
  Apply(std::move(decision));
  if (response.ok()) node->job_id = response->job_id();
  return response.status();
}

absl::Status ClusterTest::Register(FakeServer* server) {
  auto [response, decision] = membership_->RegisterServer(now_, server->info);
  Apply(std::move(decision));
  if (response.ok()) server->id = response->server_id();
  return response.status();
}

void ClusterTest::Watch(FakeNode* node) {
  node->watch = next_++;
  v1::WatchRequest request;
  *request.mutable_member() = node->member();
  node->announced.AddTo(&request);
  auto [status, decision] = membership_->WatchNode(now_, request, node->watch);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Watch(FakeServer* server) {
  server->watch = next_++;
  v1::WatchRequest request;
  *request.mutable_member() = server->member();
  server->announced.AddTo(&request);
  auto [status, decision] = membership_->WatchServer(now_, request, server->watch);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

FakeServer* ClusterTest::ServerOf(const FakeNode& node) {
  for (auto& server : servers_) {
    if (server->id == node.info.colocated_server_id()) return server.get();
  }
  return nullptr;
}

v1::TensorDescriptor ClusterTest::Tensor(const std::string& name, std::vector<int64_t> shape,
                                         v1::DType dtype) {
  v1::TensorDescriptor tensor;
  tensor.set_name(name);
  tensor.set_dtype(dtype);
  for (const int64_t dimension : shape) tensor.add_shape(dimension);
  return tensor;
}

void ClusterTest::Declare(const FakeNode& node, const std::vector<v1::TensorDescriptor>& tensors,
                          uint32_t number) {
  v1::DeclareRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  for (const auto& tensor : tensors) {
    *request.add_tensors() = tensor;
    request.add_numbers(number++);
  }
  auto [status, decision] = membership_->Declare(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Undeclare(const FakeNode& node, const std::string& name) {
  v1::UndeclareRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  request.add_names(name);
  node.memory.Note(Report(request));
  auto [status, decision] = membership_->Undeclare(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Idle(const FakeNode& node) {
  v1::ReportIdleRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  node.memory.Note(Report(request));
  auto [status, decision] = membership_->ReportIdle(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Fail(const FakeNode& node, const std::string& reason,
                       std::optional<FailureKind> kind) {
  v1::ReportFailureRequest request;
  *request.mutable_member() = node.member();
  request.set_generation(node.generation);
  request.set_reason(reason);
  if (kind.has_value()) request.set_kind(TellFailure(*kind).name);
  node.memory.Note(Report(request));
  auto [status, decision] = membership_->ReportFailure(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Leave(FakeNode* node) {
  node->silent = true;
  auto [status, decision] = membership_->Leave(now_, node->member());
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Leave(FakeServer* server) {
  server->silent = true;
  auto [status, decision] = membership_->Leave(now_, server->member());
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::Kill(FakeNode* node) {
  node->silent = true;
  membership_->WatchBroke(now_, node->watch);
  node->watch = 0;
  if (FakeServer* server = ServerOf(*node)) Kill(server);
}

void ClusterTest::Kill(FakeServer* server) {
  server->silent = true;
  membership_->WatchBroke(now_, server->watch);
  server->watch = 0;
}

void ClusterTest::Pass(absl::Duration duration) {
  const absl::Time end = now_ + duration;
  while (now_ < end) {
    now_ = std::min(end, now_ + absl::Milliseconds(500));
    v1::HeartbeatRequest beat;
    for (const auto& server : servers_) {
      *beat.mutable_member() = server->member();
      if (!server->silent) membership_->Heartbeat(now_, beat).answer.IgnoreError();
    }
    for (const auto& node : nodes_) {
      *beat.mutable_member() = node->member();
      beat.set_generation(node->generation);
      beat.clear_paces();
      for (const auto& [server, part] : node->busy) {
        v1::ServerPace& pace = node->paces[server];
        pace.set_server_id(server);
        pace.set_served_s(pace.served_s() + 0.5 * part);
        pace.set_services(pace.services() + 5);
        *beat.add_paces() = pace;
      }
      if (!node->silent) membership_->Heartbeat(now_, beat).answer.IgnoreError();
    }
    auto [next, decision] = membership_->Tick(now_);
    EXPECT_GT(next, now_);
    Apply(std::move(decision));
  }
}

void ClusterTest::DeclareAll(const std::vector<FakeNode*>& nodes,
                             const std::vector<v1::TensorDescriptor>& tensors) {
  for (const FakeNode* node : nodes) Declare(*node, tensors);
}

void ClusterTest::ReportLost(const FakeNode& node, const FakeServer& server) {
  ReportServer(node, report::ServerLost(Generation(node.generation), ServerId(server.id),
                                        absl::UnavailableError("connection refused")));
}

void ClusterTest::ReportReached(const FakeNode& node, const FakeServer& server) {
  ReportServer(node, report::ServerReached(Generation(node.generation), ServerId(server.id)));
}

void ClusterTest::ReportServer(const FakeNode& node, Report report) {
  auto& request = std::get<v1::ReportServerLostRequest>(report);
  *request.mutable_member() = node.member();
  auto [status, decision] = membership_->ReportServerLost(now_, request);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
}

void ClusterTest::ExpectHeld(const v1::TensorPlan& plan, uint64_t job_id) {
  ASSERT_EQ(plan.servers_size(), plan.shards_size());
  for (int i = 0; i < plan.servers_size(); ++i) {
    int owners = 0;
    for (const auto& server : servers_) {
      if (server->watch == 0) continue;
      const auto job = server->jobs.find(job_id);
      const bool owner = plan.servers(i) == server->id;
      owners += owner;
      bool held = false;
      if (job != server->jobs.end()) {
        const auto tensor = job->second.tensors.find(plan.tensor_id());
        if (tensor != job->second.tensors.end()) {
          for (int j = 0; j < tensor->second.partitions_size(); ++j) {
            if (tensor->second.partitions(j) != static_cast<uint32_t>(i)) continue;
            held = true;
            EXPECT_EQ(tensor->second.shards(j), plan.shards(i));
          }
        }
      }
      EXPECT_EQ(held, owner) << "partition " << i << " at server " << server->id;
    }
    EXPECT_EQ(owners, 1) << "partition " << i;
  }
}

void ClusterTest::Restart() {
  now_ += absl::Seconds(1);
  Start();
  const auto entries = store_.Load();
  ASSERT_TRUE(entries.ok());
  const absl::Status restored = membership_->Restore(now_, *entries);
  ASSERT_TRUE(restored.ok()) << restored;
  for (auto& server : servers_) {
    if (!server->silent) Watch(server.get());
  }
  for (auto& node : nodes_) {
    if (!node->silent) Watch(node.get());
  }
}

void ClusterTest::RestartWithoutStore() {
  now_ += absl::Seconds(1);
  store_ = MemoryStore();
  first_job_ += 1000;  // as the clock does
  Start();
  for (auto& server : servers_) server->watch = 0;
  for (auto& node : nodes_) node->watch = 0;
}

absl::Status ClusterTest::ComeBack(FakeNode* node) {
  node->info.set_former_job_id(node->job_id);
  node->info.clear_recollection();
  node->memory.AddTo(&node->info);
  const absl::Status status = Register(node);
  if (status.ok()) Watch(node);
  return status;
}

absl::Status ClusterTest::ComeBack(FakeServer* server) {
  server->info.set_former_server_id(server->id);
  server->info.clear_announced();
  server->announced.AddTo(&server->info);
  const absl::Status status = Register(server);
  if (status.ok()) Watch(server);
  return status;
}

void ClusterTest::AllComeBack(absl::Duration limit) {
  const absl::Time deadline = now_ + limit;
  for (bool missing = true; missing;) {
    missing = false;
    const auto come_back = [&](auto& members) {
      for (auto& member : members) {
        if (member->silent || member->watch != 0) continue;
        const absl::Status status = ComeBack(member.get());
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        missing = missing || !status.ok();
      }
    };
    come_back(nodes_);
    come_back(servers_);
    if (!missing) return;
    ASSERT_LE(now_, deadline) << "a member is not let in:\n" << Reasons();
    Pass(absl::Milliseconds(500));
  }
}

std::string ClusterTest::Reasons() const { return absl::StrJoin(reasons_, "\n"); }

}  // namespace addend
