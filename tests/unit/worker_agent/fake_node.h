// The surroundings of the agent's objects without a socket, a thread or a machine's clock: trainers
// and servers that record what they get, and reports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/auth/link_proof.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/transport/transport.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/trainer.h"
#include "tests/unit/shard/fake_loop.h"

namespace addend {

class FakeTrainer final : public Trainer {
 public:
  struct Sent {
    ipc::Message fixed;
    std::string text;
    size_t segments;
  };
  explicit FakeTrainer(int32_t pid = 1) : pid_(pid) {}
  void Close(absl::Status why) override { closed = why; }
  int32_t pid() const override { return pid_; }

  std::vector<ipc::Type> types() const {
    std::vector<ipc::Type> types;
    for (const Sent& one : sent) types.push_back(one.fixed.type);
    return types;
  }
  // The last message, which must be of this type.
  template <typename Typed>
  Typed Last() const {
    const Sent& last = sent.at(sent.size() - 1);
    EXPECT_EQ(last.fixed.type, Typed().Encode().fixed.type);
    return Typed::Decode({.fixed = last.fixed, .text = last.text});
  }

  std::vector<Sent> sent;
  std::optional<absl::Status> closed;

 private:
  void Write(const ipc::Encoded& message, std::vector<std::shared_ptr<Segment>> segments) override {
    sent.push_back({message.fixed, std::string(message.text), segments.size()});
  }
  const int32_t pid_;
};

// "declare t", "failed peer_lost: ...", in the order of the reports.
class FakeReports final : public SchedulerReports {
 public:
  void Send(Report report) override {
    said.push_back(std::visit([](const auto& request) { return Text(request); }, report));
  }
  void BeatSoon() override { said.push_back("beat"); }

  std::vector<std::string> said;

 private:
  static std::string Text(const v1::DeclareRequest& request) {
    return "declare " + request.tensors(0).name();
  }
  static std::string Text(const v1::UndeclareRequest& request) {
    return "undeclare " + request.names(0);
  }
  static std::string Text(const v1::ReportTrainersRequest& request) {
    return absl::StrFormat("trainers %d", request.initialised());
  }
  static std::string Text(const v1::ReportIdleRequest&) { return "idle"; }
  static std::string Text(const v1::ReportFailureRequest& request) {
    return "failed " + request.kind() + ": " + request.reason();
  }
  static std::string Text(const v1::ReportServerLostRequest& request) {
    return absl::StrFormat("%s server %d", request.reached() ? "reached" : "lost",
                           request.server_id());
  }
  static std::string Text(const v1::AckChangeRequest& request) {
    return absl::StrFormat("change %d %s", request.change(),
                           request.following() ? "followed" : "connected");
  }
};

// A server's end of a connection: records the node's frames.
class FakeLink final : public Link {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  FakeLink(FakeLoop* loop, Sink* sink) : loop_(loop), sink_(sink) {}
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    frames.push_back({header, {payload.begin(), payload.end()}});
    if (done) loop_->Defer([done = std::move(done)]() mutable { done(absl::OkStatus()); });
  }
  void Close(absl::Status why) override {
    if (closed) return;
    closed = why;
    loop_->Defer([this] { sink_->OnClosed(*closed); });
  }
  std::string peer() const override { return "peer"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t bytes) override { in_flight = bytes; }
  void Share(uint64_t) override {}

  // A frame of the server's, with its payload, as a transport that copies delivers it.
  absl::Status Deliver(FrameHeader header, Bytes payload = {}) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    MutableBytes room;
    if (!payload.empty()) {
      auto placed = sink_->Place(header);
      if (!placed.ok()) return placed.status();
      room = *placed;
      std::copy_n(payload.begin(), std::min(room.size(), payload.size()), room.begin());
    }
    return sink_->OnFrame(header, Payload(room));
  }
  // The types of the frames behind the handshake.
  std::vector<FrameType> types() const {
    std::vector<FrameType> types;
    for (const Frame& frame : frames) types.push_back(frame.header.type);
    return types;
  }

  std::vector<Frame> frames;
  std::optional<absl::Status> closed;
  size_t in_flight = 0;

 private:
  FakeLoop* const loop_;
  Sink* const sink_;
};

// A transport whose connections the test decides.
class FakeTransport final : public Transport {
 public:
  struct Attempt {
    Address address;
    uint32_t shard;
    Sink* sink;
    ConnectFn connected;
  };
  FakeTransport(FakeLoop* loop, const NodeIdentity* node, std::string name)
      : loop_(loop),
        node_(*node),
        traits_{.name = std::move(name), .reach = "ip", .in_flight_max = 1000} {}
  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return counts; }
  absl::StatusOr<Address> Listen(const Address&, AcceptFn) override {
    return absl::UnimplementedError("the agent does not listen here");
  }
  void Connect(const Address& address, uint32_t shard, Sink* sink, absl::Duration,
               ConnectFn connected) override {
    attempts.push_back({address, shard, sink, std::move(connected)});
  }

  // The first attempt fails.
  void Refuse(const absl::Status& why) { TakeAttempt().connected(why); }
  // The first attempt finds a process, which says nothing.
  FakeLink* Meet() {
    Attempt attempt = TakeAttempt();
    links_.emplace_back(loop_, attempt.sink);
    attempt.connected(&links_.back());
    return &links_.back();
  }
  // The first attempt succeeds, and the server proves its identity: the link is open.
  FakeLink* Open(Incarnation server = Incarnation(9)) {
    Attempt attempt = TakeAttempt();
    links_.emplace_back(loop_, attempt.sink);
    FakeLink* const link = &links_.back();
    attempt.connected(link);
    auth::LinkTerms terms{.claim = node_.claim(),
                          .node = node_.incarnation,
                          .server = server,
                          .shard = attempt.shard,
                          .encrypt = node_.encrypt,
                          .node_nonce = auth::DecodeOpening(link->frames.at(0).payload)->nonce,
                          .server_nonce = {}};
    FrameHeader header;
    header.type = FrameType::kChallenge;
    header.incarnation = server;
    EXPECT_TRUE(link->Deliver(header, terms.server_nonce).ok());
    header.type = FrameType::kHello;
    header.flags = kFlagReply;
    const auth::Secret proof = auth::ProofOf(auth::Side::kServer, node_.token.secret, terms);
    link->frames.clear();
    EXPECT_TRUE(link->Deliver(header, proof).ok());
    return link;
  }

  std::list<Attempt> attempts;
  TransportStats counts;

 private:
  Attempt TakeAttempt() {
    Attempt first = std::move(attempts.front());
    attempts.pop_front();
    return first;
  }
  FakeLoop* const loop_;
  const NodeIdentity& node_;
  const Traits traits_;
  std::list<FakeLink> links_;
};

// Node 1 of 2 nodes with two local ranks each, whose job is ready. Server 1 is colocated; server 2
// is reached over TCP.
class FakeNode {
 public:
  explicit FakeNode(uint32_t local_size = 2) : counters(local_size) {
    options.local_size = local_size;
    directory.colocated = ServerId(1);
    AddServer(2);
  }
  v1::ServerInfo& AddServer(uint32_t number) {
    v1::ServerInfo& server = directory.servers[number];
    server.set_server_id(number);
    server.set_hostname("b");
    server.set_incarnation(9);
    v1::DataEndpoint* const endpoint = server.add_endpoints();
    endpoint->set_transport("tcp");
    endpoint->set_host("10.0.0.7");
    endpoint->set_port(7171);
    return server;
  }
  NodeContext context() {
    return {.options = &options,
            .identity = &identity,
            .lease = absl::Seconds(10),
            .loop = &loop,
            .clock = &loop,
            .reports = &reports,
            .transports = {.tcp = &tcp, .inproc = &inproc, .rdma = nullptr},
            .encoder = &encoder,
            .convoy = &convoy,
            .directory = &directory,
            .job = &job,
            .counters = &counters,
            .incidents = &incidents,
            .journal = &journal,
            .slots = &slots,
            .pulse = &pulse};
  }

  FakeLoop loop;
  NodeOptions options{.job = "job",
                      .node = NodeId(1),
                      .num_nodes = 2,
                      .local_size = 2,
                      .incarnation = Incarnation(7),
                      .hostname = "host",
                      .advertise = "10.0.0.1",
                      .socket = "",
                      .topology = Topology{}};
  NodeIdentity identity{.job = JobId(3),
                        .generation = Generation(1),
                        .node = NodeId(1),
                        .incarnation = Incarnation(7),
                        .token = {.expires_unix_s = 4'102'444'800, .secret = {std::byte{1}}}};
  FakeReports reports;
  FakeTransport tcp{&loop, &identity, "tcp"};
  FakeTransport inproc{&loop, &identity, "inproc"};
  JobProgress job{.state = v1::READY, .reason = ""};
  AgentCounters counters;
  Incidents incidents;
  Journal journal;
  ResultSlots slots;
  Pulse pulse;
  PayloadEncoder encoder{WireEncoding::kAlways};
  Convoy convoy{SendLimits()};
  ServerDirectory directory;
};

inline TensorShape Floats(const std::string& name, int64_t elements, ReduceOp op = ReduceOp::kSum) {
  return {.name = name, .dtype = DType::kFloat32, .op = op, .dims = {elements}, .participants = {}};
}

inline std::vector<std::byte> FloatBytes(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

inline void WriteFloats(MutableBytes bytes, const std::vector<float>& values) {
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size() * sizeof(float));
}

}  // namespace addend
