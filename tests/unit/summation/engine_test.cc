// The engine over real TCP, with nodes that a test drives frame by frame.
#include "lib/summation/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <optional>

#include "lib/auth/link_proof.h"
#include "lib/transport/tcp/factory.h"
#include "lib/wire/stamp.h"

namespace addend {
namespace {

constexpr JobId kJob{7};
constexpr TensorId kTensor{1};

// How a node gets in. What it shows is a token of its own, unless it repeats what it has overheard.
struct Access {
  std::string key = "secret";  // of the job
  Generation generation{1};
  absl::Duration expires_in = absl::Minutes(10);
  std::optional<auth::Secret> overheard = std::nullopt;
};

// One node's end of a link.
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
                           terms_.claim = {.job = kJob,
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
  // The plan version of the next owner, and the last round that this one has sealed.
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
      std::vector<float> values(header.payload_bytes / sizeof(float));
      std::memcpy(values.data(), payload.bytes().data(), header.payload_bytes);
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
    header.job = kJob;
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
    port_ = *engine_->ListenTcp({.host = "127.0.0.1", .port = 0});
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
    return engine_->Reserve(kJob, spec);
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

TEST_F(EngineTest, SumsInNodeOrderWhateverTheOrderOfArrival) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  // (1e8 + -1e8) + 1 is 1; any other order gives 0 or 1.
  const float values[] = {1e8f, -1e8f, 1.0f};
  nodes[2]->Push({values[2]}, 1);
  nodes[1]->Push({values[1]}, 1);
  nodes[0]->Push({values[0]}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{1.0f});
  nodes[0]->Push({1.0f}, 2);
  nodes[2]->Push({-1e8f}, 2);
  nodes[1]->Push({1e8f}, 2);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(2), std::vector<float>{0.0f});
}

TEST_F(EngineTest, WithoutRoomForEarlyContributionsTheyAreAskedForAgain) {
  constexpr uint64_t kElements = 1024;
  Start(2, /*memory_limit=*/2 * kElements * sizeof(float));
  ASSERT_TRUE(Reserve(kElements, kElements).ok());
  EXPECT_EQ(engine_->free_bytes(), 0u);
  Node* first = Join(0);
  Node* second = Join(1);
  ASSERT_TRUE(first->WaitForHello());
  ASSERT_TRUE(second->WaitForHello());
  const std::vector<float> ones(kElements, 1.0f);
  second->Push(ones, 1);  // early, and there is no room
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  first->Push(ones, 1);
  ASSERT_TRUE(second->WaitForSendAgain());
  second->Push(ones, 1);
  EXPECT_EQ(first->WaitForResult(1), std::vector<float>(kElements, 2.0f));
  EXPECT_EQ(second->WaitForResult(1), std::vector<float>(kElements, 2.0f));
  EXPECT_EQ(engine_->stats().early_dropped, 1u);
  EXPECT_LE(engine_->stats().memory_peak_bytes, 2 * kElements * sizeof(float));
}

TEST_F(EngineTest, AResultIsSentAgainToANodeThatRepeatsItsContribution) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({3.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  node->results.clear();
  node->Push({3.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, ALaterOwnerLearnsFromTheNodesWhereThePartitionStands) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({100.0f}, 5);  // before the reports: dropped, and sent again later
  nodes[0]->Report(4, 9);       // of another plan
  nodes[0]->Report(5, 4);
  nodes[1]->Report(5, 3);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForRecovered(), Round(4));
  ASSERT_TRUE(nodes[0]->WaitForRequest(4));
  nodes[0]->Supply({42.0f}, 4);
  EXPECT_EQ(nodes[1]->WaitForResult(4), std::vector<float>{42.0f});
  EXPECT_EQ(nodes[1]->wanted, Round()) << "it has nothing to give";
  for (Node* node : nodes) node->version = 5;
  nodes[1]->Push({2.0f}, 5);
  nodes[0]->Push({1.0f}, 5);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(5), std::vector<float>{3.0f});
}

TEST_F(EngineTest, AnOwnerThatRecoversGivesWhatItHasSealedItself) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  for (Node* node : nodes) node->Push({1.5f}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  nodes[0]->Push({7.0f}, 2);  // forgotten by the recovery
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  const uint64_t reserved = engine_->stats().memory_used_bytes;
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/9).ok());
  EXPECT_EQ(engine_->stats().memory_used_bytes, reserved) << "it is held already";
  nodes[1]->results.clear();
  nodes[0]->Report(9, 1);
  nodes[1]->Report(9, 0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0f});
  for (Node* node : nodes) node->version = 9;
  nodes[0]->Push({1.0f}, 2);
  nodes[1]->Push({2.0f}, 2);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(2), std::vector<float>{3.0f});
}

TEST_F(EngineTest, AnOwnerHandsOverWhenTheRoundThatHasBegunIsSealed) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({1.0f}, 1);
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(6));
  nodes[1]->Push({2.0f}, 1);
  for (Node* node : nodes) {
    EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
    EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  }
  // A node that has not heard of it, and one that has lost its result.
  nodes[0]->moved.reset();
  nodes[0]->Push({1.0f}, 2);
  EXPECT_EQ(nodes[0]->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  nodes[1]->moved.reset();
  nodes[1]->results.clear();
  nodes[1]->Sync(/*held=*/0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
  EXPECT_GT(engine_->stats().memory_used_bytes, 0u) << "kept until it is released";
  engine_->Release(kJob, kTensor, {0});
  EXPECT_EQ(engine_->stats().memory_used_bytes, 0u);
}

TEST_F(EngineTest, TheFirstContributionTellsWhereAPartitionStandsThatWasHandedOver) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/6, /*handed_over=*/true).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({9.0f}, 3);  // from a time when this server was the owner: dropped
  for (Node* node : nodes) node->version = 6;
  nodes[1]->Push({2.0f}, 8);
  nodes[0]->Push({1.0f}, 8);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(8), std::vector<float>{3.0f});
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, APartitionThatComesBackAtAnotherShardIsForgottenAtTheFormer) {
  Start(1, /*memory_limit=*/0, /*shards=*/2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/3).ok());
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5, /*handed_over=*/false, /*shard=*/1).ok());
  const auto rounds = engine_->RollCall(kJob, 10);
  ASSERT_EQ(rounds.size(), 1u) << "held once";
  EXPECT_EQ(rounds[0].state, "recovering");
  Node* node = Join(0, {}, /*shard=*/1);
  ASSERT_TRUE(node->WaitForHello());
  node->Report(5, 7);
  EXPECT_EQ(node->WaitForRecovered(), Round(7));
}

TEST_F(EngineTest, APartitionThatNobodyUsesIsHandedOverAtOnce) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(2));
  EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(2), Round(0)));
}

TEST_F(EngineTest, WhatIsAboutAPartitionOfAnotherServerIsDropped) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1, /*partition=*/7);
  node->Push({1.0f}, 1, 0, TensorId(99));
  node->Push({4.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{4.0f});
}

TEST_F(EngineTest, ATokenOfAnotherJobsKeyIsRefused) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* intruder = Join(0, {.key = "guess!"});
  EXPECT_EQ(intruder->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
}

TEST_F(EngineTest, ATokenExpiresButClocksMayDifferByMinutes) {
  Start(2);
  Node* late = Join(0, {.expires_in = -auth::kClockSkew - absl::Minutes(1)});
  EXPECT_EQ(late->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kExpiredToken), 1u);
  EXPECT_TRUE(Join(0, {.expires_in = -auth::kClockSkew + absl::Minutes(1)})->WaitForHello());
}

TEST_F(EngineTest, ATokenOfAnotherGenerationIsRefused) {
  Start(1);
  Node* former = Join(0, {.generation = Generation(2)});
  EXPECT_EQ(former->WaitForClose().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refused(Refusal::kNotMember), 1u);
}

TEST_F(EngineTest, WhatWasOverheardOnOneLinkOpensNoOther) {
  Start(1);
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  Node* eavesdropper = Join(0, {.overheard = node->proof});
  EXPECT_EQ(eavesdropper->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
  EXPECT_FALSE(node->closed) << "and the node's own link stays";
}

TEST_F(EngineTest, TheServerProvesThatItKnowsTheKey) {
  Start(1);
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  EXPECT_TRUE(node->server_is_real);
}

TEST_F(EngineTest, ANodeThatRunsAheadIsRefused) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 2);
  EXPECT_EQ(node->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AContributionOfAnotherSizeIsRefused) {
  Start(1);
  ASSERT_TRUE(Reserve(4, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1);
  EXPECT_EQ(node->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AReservationOverTheLimitSaysTheNumbers) {
  Start(1, /*memory_limit=*/1000);
  const absl::Status status = Reserve(1000, 64);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("1KB"), std::string::npos) << status;
  EXPECT_TRUE(Reserve(8, 64).ok()) << "what fits is still taken";
}

TEST_F(EngineTest, ReleasedMemoryIsFreeAgainAndANewGenerationForgetsAll) {
  Start(1, /*memory_limit=*/4096);
  ASSERT_TRUE(Reserve(256, 64).ok());
  engine_->Release(kJob, kTensor);
  EXPECT_EQ(engine_->free_bytes(), 4096u);
  ASSERT_TRUE(Reserve(256, 64).ok());
  engine_->Release(kJob, kTensor, {1, 3});
  EXPECT_EQ(engine_->free_bytes(), 4096u - 2 * 2 * 64 * sizeof(float));
  engine_->RetainOnly({{kJob, {{kTensor, {0}}}}});
  EXPECT_EQ(engine_->free_bytes(), 4096u - 2 * 64 * sizeof(float));
  job_.generation = Generation(2);
  engine_->SetJob(job_);
  EXPECT_EQ(engine_->free_bytes(), 4096u);
}

TEST_F(EngineTest, TheRollCallNamesWhoIsMissing) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(1);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1);
  std::vector<OpenRoundInfo> rounds;
  while (rounds.empty()) rounds = engine_->RollCall(kJob, 10);
  EXPECT_EQ(rounds[0].pushed, std::vector<NodeId>{NodeId(1)});
  EXPECT_EQ(rounds[0].missing, (std::vector<NodeId>{NodeId(0), NodeId(2)}));
  EXPECT_EQ(rounds[0].round, Round(1));
}

TEST_F(EngineTest, WhenTheGenerationHasFailedNothingIsSealedAndAllWhoContributeAreTold) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  for (Node* node : nodes) node->Push({1.0f}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  nodes[0]->Push({1.0f}, 2);
  while (engine_->RollCall(kJob, 1).empty()) {
  }
  job_.failed = true;
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  EXPECT_EQ(nodes[0]->WaitForAborted(), Round(2));
  EXPECT_FALSE(nodes[2]->WaitForClose().ok()) << "nothing is taken from it any more";
  nodes[1]->WaitForAborted();
  nodes[1]->Push({1.0f}, 2);
  EXPECT_EQ(nodes[1]->WaitForAborted(), Round(2)) << "it comes later";
  // Who lacks the round before still gets it, and a round that has failed is no stall.
  nodes[0]->results.clear();
  nodes[0]->Push({1.0f}, 1);
  EXPECT_EQ(nodes[0]->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_TRUE(engine_->RollCall(kJob, 1).empty());
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, TheOthersGoOnWithoutALostNode) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[2]->Push({4.0f}, 1);
  nodes[1]->Push({2.0f}, 1);
  while (engine_->RollCall(kJob, 1).empty() || engine_->RollCall(kJob, 1)[0].pushed.size() < 2) {
  }
  job_.lost = {NodeId(0)};
  engine_->SetJob(job_);
  for (Node* node : {nodes[1], nodes[2]}) {
    EXPECT_EQ(node->WaitForResult(1), std::vector<float>{6.0f});
    EXPECT_EQ(node->contributors, 2u);
    node->Push({1.0f}, 2);
  }
  EXPECT_EQ(nodes[1]->WaitForResult(2), std::vector<float>{2.0f});
  Node* back = Join(0);
  EXPECT_EQ(back->WaitForClose().code(), absl::StatusCode::kPermissionDenied);
  // Nor does a later owner wait for its report.
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/7).ok());
  for (Node* node : {nodes[1], nodes[2]}) node->Report(7, 2);
  EXPECT_EQ(nodes[1]->WaitForRecovered(), Round(2));
}

TEST_F(EngineTest, ARoundThatOnlyALostNodeHeldIsSummedAgain) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/7).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Report(7, 4);
  nodes[1]->Report(7, 4);
  nodes[2]->Report(7, 5);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForRecovered(), Round(5));
  EXPECT_TRUE(nodes[2]->WaitForRequest(5));
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  for (Node* node : {nodes[0], nodes[1]}) {
    EXPECT_TRUE(node->WaitForSendAgain());
    node->version = 7;
    node->Push({1.0f}, 5);
  }
  for (Node* node : {nodes[0], nodes[1]})
    EXPECT_EQ(node->WaitForResult(5), std::vector<float>{2.0f});
}

TEST_F(EngineTest, AnOwnerThatHadHandedOverAbortsWhatItGetsBackWhenTheGenerationHasFailed) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(2));
  for (Node* node : nodes) EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(2), Round(0)));
  job_.failed = true;
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/3).ok());  // the owner to be was lost
  for (Node* node : nodes) {
    node->version = 3;
    node->Report(3, 0);
  }
  for (Node* node : nodes) {
    EXPECT_EQ(node->WaitForRecovered(), Round(0));
    node->Push({1.0f}, 1);
    EXPECT_EQ(node->WaitForAborted(), Round(1));
  }
  EXPECT_EQ(engine_->stats().partitions_sealed, 0u);
}

// ---- asynchronous mode ----

TEST_F(EngineTest, AnUpdateIsAnsweredWithTheLatestValueAndNobodyElseIsTold) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(3, 2).ok());  // two partitions
  const auto nodes = JoinAsynchronously(2);
  nodes[1]->Push({1, 2}, 1);
  EXPECT_EQ(nodes[1]->WaitForResult(1), (std::vector<float>{1, 2}));
  EXPECT_EQ(nodes[1]->stamp.applied, (std::vector<uint64_t>{0, 1}));
  nodes[1]->Push({10, 20}, 2);
  EXPECT_EQ(nodes[1]->WaitForResult(2), (std::vector<float>{11, 22}));
  nodes[0]->Push({100, 200}, 1);
  EXPECT_EQ(nodes[0]->WaitForResult(1), (std::vector<float>{111, 222}));
  EXPECT_EQ(nodes[0]->stamp.updates, 3u);
  EXPECT_EQ(nodes[0]->stamp.applied, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(nodes[0]->results.size(), 1u);
  nodes[1]->Push({5}, 1, /*partition=*/1);
  EXPECT_EQ(nodes[1]->WaitForResult(1, 1), std::vector<float>{5});
  nodes[0]->results.clear();
  nodes[0]->Push({100, 200}, 1);  // repeated after a reset, perhaps
  EXPECT_EQ(nodes[0]->WaitForResult(1), (std::vector<float>{111, 222})) << "not added again";
  EXPECT_EQ(engine_->stats().updates_applied, 4u);
}

TEST_F(EngineTest, ALaterOwnerGoesOnFromTheNewestCopyAndAddsNoUpdateThatIsInIt) {
  op_ = ReduceOp::kAccumulate;
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  const auto nodes = JoinAsynchronously(3, /*version=*/5);
  nodes[2]->Push({1000.0F}, 4);  // before the reports: dropped, and sent again later
  // Node 1's round 3 is in node 0's copy, but its answer was lost; node 2's round 4 is in none.
  nodes[0]->Report(5, 7, {.updates = 13, .applied = {7, 3, 3}});
  nodes[1]->Report(5, 2, {.updates = 9, .applied = {5, 2, 2}});
  nodes[2]->Report(5, 3, {.updates = 12, .applied = {7, 2, 3}});
  ASSERT_TRUE(nodes[0]->WaitForRequest(7));
  nodes[0]->Supply({42.0F}, 7);
  EXPECT_EQ(nodes[0]->WaitForRecovered(), Round(7));
  EXPECT_EQ(nodes[1]->WaitForRecovered(), Round(3)) << "not to be sent again";
  EXPECT_EQ(nodes[1]->WaitForResult(3), std::vector<float>{42.0F});
  EXPECT_EQ(nodes[2]->WaitForRecovered(), Round(3));
  nodes[2]->Push({1000.0F}, 4);
  EXPECT_EQ(nodes[2]->WaitForResult(4), std::vector<float>{1042.0F});
  EXPECT_EQ(nodes[2]->stamp.updates, 14u);
  EXPECT_EQ(nodes[2]->stamp.applied, (std::vector<uint64_t>{7, 3, 4}));
  EXPECT_EQ(engine_->stats().updates_lost, 0u);
}

TEST_F(EngineTest, WhenTheHolderIsLostTheNextNewestCopyIsTakenAndWhatIsMissingCounted) {
  op_ = ReduceOp::kAccumulate;
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  const auto nodes = JoinAsynchronously(3, /*version=*/5);
  nodes[0]->Report(5, 7, {.updates = 13, .applied = {7, 3, 3}});
  nodes[1]->Report(5, 3, {.updates = 11, .applied = {5, 3, 3}});
  nodes[2]->Report(5, 3, {.updates = 10, .applied = {5, 2, 3}});
  ASSERT_TRUE(nodes[0]->WaitForRequest(7));
  job_.lost = {NodeId(0)};
  engine_->SetJob(job_);
  ASSERT_TRUE(nodes[1]->WaitForRequest(3));
  EXPECT_EQ(engine_->RollCall(kJob, 10).at(0).missing, std::vector<NodeId>{NodeId(1)});
  nodes[1]->Supply({7.0F}, 3);
  EXPECT_EQ(nodes[2]->WaitForRecovered(), Round(3));
  EXPECT_EQ(engine_->stats().updates_lost, 2u) << "of node 0, which had the answers";
}

TEST_F(EngineTest, AnOwnerHandsOverBetweenTwoUpdates) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(2);
  nodes[1]->Push({3.0F}, 1);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0F});
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(9));
  EXPECT_EQ(nodes[0]->WaitForMoved(), std::pair(PlanVersion(9), Round(0)));
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(9), Round(1)));
  nodes[1]->moved.reset();
  nodes[1]->Push({4.0F}, 2);
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(9), Round(1))) << "not added here";
  nodes[1]->results.clear();
  nodes[1]->Sync(0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0F}) << "a reset has lost it";
}

TEST_F(EngineTest, WhenTheGenerationHasFailedNoUpdateIsAdded) {
  op_ = ReduceOp::kAccumulate;
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(2);
  job_.failed = true;
  engine_->SetJob(job_);
  nodes[0]->Push({3.0F}, 1);
  EXPECT_EQ(nodes[0]->WaitForAborted(), Round(1));
}

TEST_F(EngineTest, AnUpdateForASumAndAContributionForALatestValueAreRefused) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  const auto nodes = JoinAsynchronously(1);
  nodes[0]->Push({1.0F}, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(nodes[0]->WaitForClose()));
  op_ = ReduceOp::kAccumulate;
  ASSERT_TRUE(Reserve(1, 64, TensorId(2)).ok());
  Node* const other = Join(1);
  ASSERT_TRUE(other->WaitForHello());
  other->Push({1.0F}, 1, 0, TensorId(2));
  EXPECT_TRUE(absl::IsInvalidArgument(other->WaitForClose()));
}

}  // namespace
}  // namespace addend
