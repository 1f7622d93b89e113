// A rank's training: join, declare, push and check step by step, leave or begin again.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "lib/client/messages.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/sockets.h"

namespace addend::simulation {

using client::AgentReader;
using client::AgentSocket;
using client::DeviceRounds;
using client::Error;
using client::Operation;
using client::Operations;
using client::Packet;

namespace {

// What ranks tell each other in every step, the largest number of all.
constexpr int32_t kJoinAgain = 1;  // a node waits to be let in (addend.torch.ElasticState)
constexpr int32_t kStop = 2;

client::Declaration DeclarationOf(const JobPlan& job, const TensorSetting& setting) {
  client::Declaration declaration{
      .name = setting.name,
      .shape = {static_cast<int64_t>(setting.elements)},
      .dtype = setting.dtype,
      .op = setting.op,
      .wire = setting.wire,
  };
  if (setting.participants.empty()) return declaration;
  declaration.participants = Participants::Of(setting.participants, job.ranks()).value();
  return declaration;
}

}  // namespace

// The client's logic above the socket, put together as a Context does.
struct Rank::Client {
  explicit Client(std::shared_ptr<TrainerSocket> socket, int32_t nodes)
      : socket(std::move(socket)),
        device_rounds(
            "simulated", [this](const ipc::Encoded& message, client::GuardedFd) { Send(message); },
            [this](const Error& error) { operations.Fail(error); }),
        operations(
            "simulated",
            [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
            [this](const ipc::Encoded& message) { Send(message); }, &device_rounds),
        reader(
            "simulated", nodes,
            [this](Packet* packet, AgentSocket::Event* event) { return Receive(packet, event); },
            &operations, &device_rounds) {}

  void Send(const ipc::Encoded& message) const { socket->Send(message); }
  Error Receive(Packet* packet, AgentSocket::Event* event) const {
    if (!socket->inbox.empty()) {
      *packet = std::move(socket->inbox.front());
      socket->inbox.pop_front();
      *event = AgentSocket::Event::kPacket;
    } else {
      *event = socket->hung_up ? AgentSocket::Event::kClosed : AgentSocket::Event::kTimeout;
    }
    return {};
  }
  // The job's error, if it has failed.
  Error Failure() {
    uint64_t tag = 0;
    Error error = operations.NextDone(0, &tag);
    return error.code == ADDEND_ERROR_TIMEOUT ? Error{} : error;
  }

  const std::shared_ptr<TrainerSocket> socket;
  DeviceRounds device_rounds;
  Operations operations;
  AgentReader reader;
  std::vector<std::shared_ptr<client::Tensor>> tensors;  // the last says whether to stop
  std::shared_ptr<client::Tensor> odd;                   // until its declaration is answered
  std::shared_ptr<client::Operation> odd_round;          // until it has ended
  std::vector<std::byte> odd_in;
};

struct Rank::Step {
  struct One {
    std::vector<std::byte> in;
    std::vector<std::byte> out;  // empty: the result is a view
    std::shared_ptr<Operation> operation;
  };
  std::vector<One> tensors;
};

Rank::Rank(Cluster* cluster, const JobPlan* job, uint32_t node, uint32_t local_rank)
    : cluster_(cluster),
      job_(job),
      node_(node),
      local_rank_(local_rank),
      process_(cluster->NewProcess(
          absl::StrFormat("%s/rank%d", job->name, node * job->local_size + local_rank),
          absl::StrFormat("%s-host%d", job->name, node))) {
  ConnectLater();
}

Rank::~Rank() {
  open_.clear();
  Disconnect();
}

uint32_t Rank::rank() const { return node_ * job_->local_size + local_rank_; }

std::string Rank::Describe() const {
  static constexpr const char* kStates[] = {"is away", "joins", "declares", "trains", "is done"};
  return absl::StrFormat("%s %s, generation %d, step %d", process_->name(),
                         kStates[static_cast<int>(state_)], generation_.second, steps_);
}

void Rank::ConnectLater() {
  process_->After(
      cluster_->world()->random().Between(absl::Milliseconds(1), absl::Milliseconds(300)),
      [this] { Connect(); });
}

void Rank::Connect() {
  if (state_ != State::kAway) return;
  const std::unique_ptr<AgentHost>& agent = cluster_->agent(job_, node_);
  auto socket = agent == nullptr ? nullptr : agent->Accept();
  if (socket == nullptr) return ConnectLater();
  socket_ = socket;
  socket_->trainer = process_;
  socket_->readable = [this] { OnReadable(); };
  state_ = State::kJoining;
  const ipc::InitMessage init{static_cast<int32_t>(rank()), static_cast<int32_t>(job_->ranks()),
                              static_cast<int32_t>(local_rank_),
                              static_cast<int32_t>(job_->local_size), job_->name};
  socket_->Send(init.Encode());
}

void Rank::OnReadable() {
  if (state_ == State::kJoining) {
    while (state_ == State::kJoining && !socket_->inbox.empty()) {
      const Packet packet = std::move(socket_->inbox.front());
      socket_->inbox.pop_front();
      OnJoinMessage(packet);
    }
    if (state_ == State::kJoining && socket_->hung_up) {
      Disconnect();
      ConnectLater();
    }
  }
  if (client_ == nullptr) return;
  while (client_->reader.Deliver() == client::Reading::Step::kDelivered) {
  }
  Advance();
}

void Rank::OnJoinMessage(const Packet& packet) {
  if (packet.message.type == ipc::Type::kProgress) return;
  uint32_t code = ADDEND_ERROR_INTERNAL;
  std::string reason;
  if (packet.message.type == ipc::Type::kInitReply) {
    const auto reply = packet.Decode<ipc::InitReplyMessage>();
    code = reply.code;
    reason = reply.reason;
    if (code == 0 && reply.rank != static_cast<int32_t>(rank())) {
      cluster_->world()->Violate(process_->name() + " is given another rank");
    }
  } else if (packet.message.type == ipc::Type::kFailure) {
    const auto failure = packet.Decode<ipc::FailureMessage>();
    code = failure.code;
    reason = failure.reason;
  }
  if (code == 0) return Joined();
  process_->Trace(absl::StrFormat("is not admitted: %s", reason));
  cluster_->oracle()->OnFailure(*job_, rank(), client::FromAgent(code, reason));
  Disconnect();
  ConnectLater();
}

void Rank::Joined() {
  const std::unique_ptr<AgentHost>& agent = cluster_->agent(job_, node_);
  if (agent == nullptr) {  // it has died since
    Disconnect();
    return ConnectLater();
  }
  generation_ = agent->generation();
  process_->Trace(absl::StrFormat("joins generation %d", generation_.second));
  client_ = std::make_unique<Client>(socket_, static_cast<int32_t>(job_->nodes));
  state_ = State::kDeclaring;
  steps_ = pushed_ = 0;
  last_step_ = std::numeric_limits<uint64_t>::max();
  pausing_ = false;
  declared_at_ = 0;
  cluster_->oracle()->OnJoin(*job_, rank());
  for (size_t i = 0; i <= job_->tensors.size(); ++i) {
    const bool last = i == job_->tensors.size();
    const TensorSetting setting = last ? TensorSetting{.name = "stop",
                                                       .dtype = DType::kInt32,
                                                       .op = ReduceOp::kMax,
                                                       .elements = 1}
                                       : job_->tensors[i];
    std::shared_ptr<client::Tensor> tensor;
    if (setting.TakesPart(rank())) {
      const Error error =
          client_->operations.StartDeclaration(DeclarationOf(*job_, setting), &tensor);
      if (!error.ok()) return Fail(error);
    }
    client_->tensors.push_back(std::move(tensor));
  }
  DeclareOdd();
}

void Rank::DeclareOdd() {
  if (!job_->odd_rank) return;
  const TensorSetting odd{.name = "odd", .elements = rank() == *job_->odd_rank ? 2u : 1u};
  const Error error =
      client_->operations.StartDeclaration(DeclarationOf(*job_, odd), &client_->odd);
  if (!error.ok()) Fail(error);
}

// The refusal of a declaration about which the ranks do not agree is nobody's failure. It comes as
// the declaration's answer, or as the end of the first round.
void Rank::CheckOdd() {
  if (client_->odd != nullptr && client_->odd->declared) {
    const std::shared_ptr<client::Tensor> odd = std::exchange(client_->odd, nullptr);
    Error error = odd->refusal;
    if (error.ok()) {
      client_->odd_in.resize(odd->bytes);
      error = client_->operations.Push(odd, client_->odd_in.data(), nullptr, /*priority=*/0,
                                       &client_->odd_round);
    }
    if (!error.ok()) cluster_->oracle()->OnOdd(*job_, rank(), error);
  }
  if (client_->odd_round == nullptr || !client_->odd_round->done) return;
  const auto round = std::exchange(client_->odd_round, nullptr);
  cluster_->oracle()->OnOdd(*job_, rank(), round->error);
}

// Goes on as far as the arrived messages allow.
void Rank::Advance() {
  if (client_ == nullptr) return;
  if (const Error failure = client_->Failure(); !failure.ok()) return Fail(failure);
  CheckOdd();
  if (state_ == State::kDeclaring) {
    for (const auto& tensor : client_->tensors) {
      if (tensor == nullptr) continue;
      if (!tensor->declared) return;
      if (!tensor->refusal.ok()) return Fail(tensor->refusal);
    }
    state_ = State::kRunning;
  }
  while (state_ == State::kRunning && !pausing_) {
    if (!open_.empty() && TakeStep()) continue;
    if (state_ != State::kRunning) return;
    if (steps_ == last_step_) return Leave();
    if (pushed_ == last_step_ || open_.size() >= job_->pipelined || !DeclareAnew()) return;
    PushStep();
    if (job_->think > absl::ZeroDuration()) {
      pausing_ = true;
      process_->After(cluster_->world()->random().Between(absl::ZeroDuration(), job_->think),
                      [this, generation = generation_] {
                        if (generation != generation_ || !pausing_) return;
                        pausing_ = false;
                        Advance();
                      });
    }
  }
}

// Before some steps, once all former steps are complete, a tensor is given up and declared anew:
// another tensor of the same name. False: the next step cannot be pushed yet.
bool Rank::DeclareAnew() {
  const uint64_t step = pushed_ + 1;
  if (job_->redeclared_every == 0) return true;
  const size_t index = step / job_->redeclared_every % job_->tensors.size();
  if (!job_->DeclaresAnewBefore(step, index)) return true;
  const TensorSetting& setting = job_->tensors[index];
  if (setting.asynchronous() || declared_at_ == step || !setting.TakesPart(rank())) return true;
  if (declaring_ != nullptr) {
    if (!declaring_->declared) return false;
    const std::shared_ptr<client::Tensor> tensor = std::exchange(declaring_, nullptr);
    if (!tensor->refusal.ok()) {
      Fail(tensor->refusal);
      return false;
    }
    declared_at_ = step;
    return true;
  }
  if (!open_.empty()) return false;
  Error error = client_->operations.Undeclare(client_->tensors[index]);
  if (error.ok()) {
    error = client_->operations.StartDeclaration(DeclarationOf(*job_, setting), &declaring_);
  }
  if (error.ok()) {
    client_->tensors[index] = declaring_;
  } else {
    Fail(error);
  }
  return false;
}

void Rank::PushStep() {
  ++pushed_;
  auto step = std::make_unique<Step>();
  Random& random = cluster_->world()->random();
  step->tensors.resize(client_->tensors.size());
  // The ranks push in different orders, except that each tensor's rounds are in theirs.
  std::vector<size_t> order(client_->tensors.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    std::swap(order[i], order[random.Below(i + 1)]);
  }
  for (const size_t i : order) {
    if (client_->tensors[i] == nullptr) continue;
    Step::One& one = step->tensors[i];
    if (i == job_->tensors.size()) {
      const bool waits = client_->reader.nodes_waiting() > 0;
      const int32_t stop = cluster_->stop ? kStop : waits ? kJoinAgain : 0;
      one.in.resize(sizeof(stop));
      std::memcpy(one.in.data(), &stop, sizeof(stop));
    } else {
      one.in = cluster_->oracle()->Contribution(*job_, generation_, i, pushed_, rank());
      cluster_->oracle()->OnPush(*job_, generation_, i, pushed_, rank());
    }
    // A view is valid until the second round after it.
    if (job_->pipelined > 1 || random.OneIn(2)) one.out.resize(one.in.size());
    const bool contributes = i == job_->tensors.size() || job_->tensors[i].Contributes(rank());
    const Error error =
        client_->operations.Push(client_->tensors[i], contributes ? one.in.data() : nullptr,
                                 one.out.empty() ? nullptr : one.out.data(),
                                 static_cast<int32_t>(random.Below(3)), &one.operation);
    if (!error.ok()) {
      open_.push_back(std::move(step));
      return Fail(error);
    }
  }
  open_.push_back(std::move(step));
}

// True if the first open step is complete.
bool Rank::TakeStep() {
  Step& step = *open_.front();
  for (size_t i = 0; i < step.tensors.size(); ++i) {
    const Step::One& one = step.tensors[i];
    if (client_->tensors[i] == nullptr) continue;
    if (one.operation == nullptr || !one.operation->done) return false;
  }
  const uint64_t round = steps_ + 1;
  for (size_t i = 0; i < step.tensors.size(); ++i) {
    const Step::One& one = step.tensors[i];
    if (client_->tensors[i] == nullptr) continue;
    if (!one.operation->error.ok()) {
      Fail(one.operation->error);
      return false;
    }
    const std::byte* const data = one.out.empty() ? one.operation->result : one.out.data();
    if (i < job_->tensors.size()) {
      cluster_->oracle()->OnResult(*job_, generation_, i, round, rank(), {data, one.in.size()});
    } else {
      int32_t stop = 0;
      std::memcpy(&stop, data, sizeof(stop));
      // Some ranks have pushed as many more by now, and so the others do.
      if (stop == 0 || round + job_->pipelined > last_step_) continue;
      last_step_ = round + job_->pipelined - 1;
      joins_again_ = stop == kJoinAgain;
    }
  }
  for (const Step::One& one : step.tensors) {
    if (one.operation != nullptr) client_->operations.Release(one.operation);
  }
  open_.pop_front();
  ++steps_;
  return true;
}

void Rank::Fail(const Error& error) {
  process_->Trace(absl::StrFormat("fails: %s", error.text));
  cluster_->oracle()->OnFailure(*job_, rank(), error);
  const std::unique_ptr<AgentHost>& agent = cluster_->agent(job_, node_);
  const bool decided =
      agent != nullptr && !agent->failed() && agent->OwnersHaveDecided(generation_);
  if (error.code == ADDEND_ERROR_PEER_LOST && decided) {
    cluster_->oracle()->OnEnd(*job_, generation_, rank(), CompleteRounds());
  }
  Disconnect();
  ConnectLater();
}

// By tensor.
std::vector<uint64_t> Rank::CompleteRounds() const {
  std::vector<uint64_t> rounds(job_->tensors.size(), steps_);
  for (const auto& step : open_) {
    for (size_t i = 0; i < rounds.size(); ++i) {
      const auto& operation = step->tensors[i].operation;
      if (operation != nullptr && operation->done && operation->error.ok()) ++rounds[i];
    }
  }
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (!job_->tensors[i].TakesPart(rank())) rounds[i] = Oracle::kNoRounds;
  }
  return rounds;
}

void Rank::Leave() {
  process_->Trace(absl::StrFormat("leaves after %d steps", steps_));
  cluster_->oracle()->OnLeave(*job_, rank());
  client_->operations.Close();
  socket_->Send(ipc::ShutdownMessage().Encode());
  Disconnect();
  if (joins_again_) return ConnectLater();
  state_ = State::kDone;
}

void Rank::LeaveEarly() {
  if (state_ != State::kRunning) return;
  process_->Trace(absl::StrFormat("leaves early, after %d steps", steps_));
  client_->operations.Close();
  socket_->Send(ipc::ShutdownMessage().Encode());
  Disconnect();
  ConnectLater();
}

// Not during a call of the client's objects: they are destroyed.
void Rank::Disconnect() {
  if (client_ != nullptr) {
    client_->operations.Close();
    client_->operations.Clear();
  }
  open_.clear();
  declaring_.reset();
  client_.reset();
  if (socket_ != nullptr) socket_->Close();
  socket_ = nullptr;
  state_ = State::kAway;
}

}  // namespace addend::simulation
