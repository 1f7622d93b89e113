// The engine over real TCP, with nodes that a test drives frame by frame.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <optional>

#include "lib/auth/link_proof.h"
#include "lib/base/limits.h"
#include "lib/summation/engine.h"
#include "lib/summation/table_bytes.h"
#include "lib/transport/tcp/factory.h"
#include "lib/transport/this_machine/factory.h"
#include "lib/wire/stamp.h"

namespace addend {

inline constexpr JobId kJob{7};
inline constexpr TensorId kTensor{1};

// The credentials of a node: a token of its own, or a proof that it has overheard.
struct Access {
  std::string key = "secret";  // of the job
  Generation generation{1};
  absl::Duration expires_in = absl::Minutes(10);
  std::optional<auth::Secret> overheard = std::nullopt;
  JobId job = kJob;
};

// A node's end of a link.
class Node : public Sink {
 public:
  Node(EventLoop* loop, Transport* transport, uint16_t port, uint32_t rank, Access access = {},
       uint32_t shard = 0)
      : loop_(loop), rank_(rank), access_(std::move(access)) {
    loop_->Run([&] {
      transport->Connect({.host = "127.0.0.1", .port = port}, shard, this, absl::Seconds(10),
                         [this, shard](absl::StatusOr<Link*> link) {
                           ASSERT_TRUE(link.ok()) << link.status();
                           link_ = *link;
                           FrameHeader hello = Header(FrameType::kHello);
                           hello.partition = PartitionId(shard);
                           terms_.shard = shard;
                           terms_.node_nonce = auth::NewSecret();
                           terms_.claim = {.job = access_.job,
                                           .generation = access_.generation,
                                           .node = NodeId(rank_),
                                           .expires_unix_s = absl::ToUnixSeconds(
                                               absl::Now() + access_.expires_in)};
                           opening_ = auth::Encode({.expires_unix_s = terms_.claim.expires_unix_s,
                                                    .nonce = terms_.node_nonce});
                           link_->Send(hello, opening_, nullptr);
                         });
    });
  }
  bool WaitForHello() {
    return Wait([this] { return greeted || closed; }) && greeted;
  }
  void Push(const std::vector<float>& values, uint64_t round, uint32_t partition = 0,
            TensorId tensor = kTensor) {
    sent_.push_back(values);
    const std::vector<float>& kept = sent_.back();
    loop_->Run([&] {
      if (link_ == nullptr) return;
      FrameHeader header = Header(FrameType::kContribution);
      header.partition = PartitionId(tensor, partition);
      header.plan_version = PlanVersion(version);
      header.round = Round(round);
      link_->Send(header, std::as_bytes(std::span<const float>(kept)), nullptr);
    });
  }
  // In the place of a relay.
  void PushSum(const std::vector<float>& values, uint64_t round, const SumSpan& span) {
    sent_.push_back(values);
    const std::vector<float>& kept = sent_.back();
    loop_->Run([&] {
      FrameHeader header = Header(FrameType::kPartialSum);
      header.partition = PartitionId(kTensor, 0);
      header.round = Round(round);
      header.contributors = span.count;
      header.detail = DetailOf(span);
      link_->Send(header, std::as_bytes(std::span<const float>(kept)), nullptr);
    });
  }
  // To a new owner of `version`: `round` is the last whose result this node holds; in asynchronous
  // mode a copy with this stamp.
  void Report(uint64_t version, uint64_t round, const Stamp& stamp = {}) {
    Tell(FrameType::kRecover, version, round,
         stamp.updates == 0 ? std::vector<std::byte>() : EncodeStamp(stamp));
  }
  // The result of `round`, for the owner that has asked for it.
  void Supply(const std::vector<float>& values, uint64_t round) {
    sent_.push_back(values);
    const std::vector<float>& kept = sent_.back();
    loop_->Run([&] {
      FrameHeader header = Header(FrameType::kResult);
      header.partition = PartitionId(kTensor, 0);
      header.plan_version = PlanVersion(version);
      header.round = Round(round);
      link_->Send(header, std::as_bytes(std::span<const float>(kept)), nullptr);
    });
  }
  // Where this node stands, after a reset.
  void Sync(uint64_t held) { Tell(FrameType::kAck, version, held); }
  // The plan version of the next owner, and the last round that this owner has sealed.
  std::pair<PlanVersion, Round> WaitForMoved() {
    Wait([this] { return moved.has_value() || closed; });
    return moved.value_or(std::pair(PlanVersion(), Round()));
  }
  // The newest round that the new owner has learnt of.
  Round WaitForRecovered() {
    Wait([this] { return recovered.has_value() || closed; });
    return recovered.value_or(Round(~uint64_t{0}));
  }
  // A round that will have no result.
  Round WaitForAborted() {
    Wait([this] { return aborted.has_value() || closed; });
    return std::exchange(aborted, std::nullopt).value_or(Round());
  }
  bool WaitForRequest(uint64_t round) {
    return Wait([this, round] { return wanted == Round(round) || closed; }) && !closed;
  }
  std::vector<float> WaitForResult(uint64_t round, uint32_t partition = 0) {
    std::vector<float>* found = nullptr;
    Wait([&] {
      const auto it = results.find({partition, round});
      if (it != results.end()) found = &it->second;
      return found != nullptr || closed;
    });
    return found ? *found : std::vector<float>{};
  }
  bool WaitForSendAgain() {
    return Wait([this] { return asked_again > 0; });
  }
  absl::Status WaitForClose() {
    Wait([this] { return closed; });
    return why;
  }

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    room_.resize(header.payload_bytes);
    return MutableBytes(room_);
  }
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override {
    MutexLock lock(&mu_);
    if (header.type == FrameType::kChallenge) Answer(header, payload.bytes());
    if (header.type == FrameType::kHello) {
      greeted = true;
      server_is_real = auth::Same(payload.bytes(), ProofOf(auth::Side::kServer));
    }
    if (header.type == FrameType::kStamp) {
      stamp = *DecodeStamp(payload.bytes(), payload.bytes().size() / 8 - 1);
    }
    if (header.type == FrameType::kSendAgain && header.flags & kFlagResult) wanted = header.round;
    if (header.type == FrameType::kSendAgain && !(header.flags & kFlagResult)) ++asked_again;
    if (header.type == FrameType::kAborted) aborted = header.round;
    if (header.type == FrameType::kResult) contributors = header.contributors;
    if (header.type == FrameType::kMoved) moved = {header.plan_version, header.round};
    if (header.type == FrameType::kRecover) recovered = header.round;
    if (header.type == FrameType::kResult) {
      std::vector<float> values(RawBytesOf(header) / sizeof(float));
      const EncodedBytes result{payload.bytes(), header.encoding};
      EXPECT_TRUE(IsWellFormed(result, header.dtype, values.size()));
      Decode(result, header.dtype, values.size(), values.data());
      results[{header.partition.index(), header.round.value()}] = values;
    }
    cv_.NotifyAll();
    return absl::OkStatus();
  }
  void OnClosed(absl::Status status) override {
    MutexLock lock(&mu_);
    link_ = nullptr;
    closed = true;
    why = status;
    cv_.NotifyAll();
  }

  uint64_t version = 0;  // of the plan that this node follows
  ReduceOp op = ReduceOp::kSum;
  Stamp stamp;  // of the last result
  std::optional<std::pair<PlanVersion, Round>> moved;
  auth::Secret proof{};  // that it has sent
  bool greeted = false;
  bool server_is_real = false;  // it has proved that it knows the key
  bool closed = false;
  int asked_again = 0;
  Round wanted;
  std::optional<Round> recovered;
  std::optional<Round> aborted;
  uint32_t contributors = 0;  // to the last result
  absl::Status why;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> results;

 private:
  FrameHeader Header(FrameType type) const {
    FrameHeader header;
    header.type = type;
    header.op = op;
    header.job = access_.job;
    header.generation = access_.generation;
    header.sender = rank_;
    return header;
  }
  auth::Secret ProofOf(auth::Side side) const {
    return auth::ProofOf(side, auth::TokenSecret(auth::BytesOf(access_.key), terms_.claim), terms_);
  }
  void Answer(const FrameHeader& challenge, Bytes nonce) {
    terms_.server = challenge.incarnation;
    std::copy(nonce.begin(), nonce.end(), terms_.server_nonce.begin());
    proof = access_.overheard.value_or(ProofOf(auth::Side::kNode));
    link_->Send(Header(FrameType::kProof), proof, nullptr);
  }
  void Tell(FrameType type, uint64_t plan_version, uint64_t round,
            std::vector<std::byte> payload = {}) {
    told_.push_back(std::move(payload));
    loop_->Run([&] {
      FrameHeader header = Header(type);
      header.partition = PartitionId(kTensor, 0);
      header.plan_version = PlanVersion(plan_version);
      header.round = Round(round);
      link_->Send(header, told_.back(), nullptr);
    });
  }
  template <typename Condition>
  bool Wait(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mu_);
    while (!condition()) {
      if (!cv_.WaitUntil(&mu_, deadline)) return false;
    }
    return true;
  }
  EventLoop* const loop_;
  const uint32_t rank_;
  const Access access_;
  auth::LinkTerms terms_;
  std::array<std::byte, auth::kOpeningBytes> opening_;
  Link* link_ = nullptr;
  std::list<std::vector<float>> sent_;
  std::list<std::vector<std::byte>> told_;
  std::vector<std::byte> room_;
  Mutex mu_;
  CondVar cv_;
};

class EngineTest : public testing::Test {
 protected:
  void Start(uint32_t nodes, uint64_t memory_limit = 0, uint32_t shards = 1) {
    engine_ = *Engine::Create({.shards = shards,
                               .memory_limit_bytes = memory_limit,
                               .incarnation = Incarnation(5),
                               .send_limits = {},
                               .network = nullptr,
                               .external_slots = nullptr});
    port_ = *engine_->Listen({.host = "127.0.0.1", .port = 0});
    job_.num_nodes = nodes;
    engine_->SetJob(job_);
    loop_ = *EventLoop::Start("nodes");
    loop_->Run([this] { transport_ = MakeTcpTransport(loop_.get()); });
  }
  absl::Status Reserve(uint64_t elements, uint64_t partition_elements, TensorId id = kTensor,
                       uint64_t version = 0, bool handed_over = false, uint32_t shard = 0) {
    TensorSpec spec;
    spec.op = op_;
    spec.id = id;
    spec.name = "tensor";
    spec.elements = elements;
    spec.partition_elements = partition_elements;
    for (uint32_t i = 0; i * partition_elements < elements; ++i) {
      spec.partitions.push_back(i);
      spec.shards.push_back(shard);
      spec.versions.emplace_back(version);
      spec.handed_over.push_back(handed_over);
    }
    return engine_->Reserve(job_.id, spec);
  }
  uint64_t Refused(Refusal reason) const {
    return engine_->stats().links_refused[static_cast<size_t>(reason)];
  }
  Node* Join(uint32_t rank, Access access = {}, uint32_t shard = 0) {
    nodes_.push_back(std::make_unique<Node>(loop_.get(), transport_.get(), port_, rank,
                                            std::move(access), shard));
    return nodes_.back().get();
  }
  void TearDown() override {
    if (loop_) loop_->Run([this] { transport_.reset(); });
    engine_.reset();
  }
  JobSpec job_{.id = kJob,
               .generation = Generation(1),
               .plan_version = PlanVersion(1),
               .key = "secret",
               .num_nodes = 1,
               .local_size = 1};
  // All of `count` nodes, in asynchronous mode.
  std::vector<Node*> JoinAsynchronously(uint32_t count, uint64_t version = 0) {
    std::vector<Node*> nodes;
    for (uint32_t rank = 0; rank < count; ++rank) {
      nodes.push_back(Join(rank));
      nodes.back()->op = ReduceOp::kAccumulate;
      nodes.back()->version = version;
      EXPECT_TRUE(nodes.back()->WaitForHello());
    }
    return nodes;
  }
  ReduceOp op_ = ReduceOp::kSum;
  std::unique_ptr<Engine> engine_;
  uint16_t port_ = 0;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace addend
