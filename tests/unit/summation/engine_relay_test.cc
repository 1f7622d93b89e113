// Engines that relay contributions for each other, over real TCP: the bits are those of the tree,
// whoever adds.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/unit/summation/engine_fixture.h"
#include "tests/unit/summation/tree_reference.h"

namespace addend {
namespace {

constexpr uint64_t kElements = 1000;

class EngineRelayTest : public testing::Test {
 protected:
  // Servers 1 to `count`, which are all of the job's.
  void Start(uint32_t nodes, uint32_t count) {
    loop_ = *EventLoop::Start("nodes");
    loop_->Run([this] { transport_ = MakeTcpTransport(loop_.get()); });
    job_.num_nodes = nodes;
    for (uint32_t i = 1; i <= count; ++i) StartServer(i);
  }
  void StartServer(uint32_t number) {
    auto engine = *Engine::Create({.incarnation = Incarnation(100 + number),
                                   .send_limits = {},
                                   .network = nullptr,
                                   .external_slots = nullptr});
    engine->SetServerId(ServerId(number));
    ports_[number] = *engine->Listen({.host = "127.0.0.1", .port = 0});
    job_.peers[ServerId(number)] = {.incarnation = Incarnation(100 + number),
                                    .host = "127.0.0.1",
                                    .port = ports_[number],
                                    .frame_version = kWireVersion,
                                    .name = "server " + std::to_string(number)};
    engines_[number] = std::move(engine);
  }
  void TellJob() {
    for (auto& [number, engine] : engines_) engine->SetJob(job_);
  }
  TensorSpec Tensor(uint64_t version = 0) const {
    TensorSpec spec;
    spec.op = op_;
    spec.id = kTensor;
    spec.name = "tensor";
    spec.elements = spec.partition_elements = kElements;
    spec.partitions = {0};
    spec.shards = {0};
    spec.versions = {PlanVersion(version)};
    spec.handed_over = {false};
    return spec;
  }
  void Own(uint32_t server, std::vector<RelayedSpan> spans) {
    TensorSpec spec = Tensor();
    spec.relayed = {std::make_shared<const std::vector<RelayedSpan>>(std::move(spans))};
    ASSERT_TRUE(engines_.at(server)->Reserve(kJob, spec).ok());
  }
  void Relay(uint32_t server, const RelayOrder& order) {
    const absl::Status status = engines_.at(server)->Relay(kJob, Tensor(), {order});
    ASSERT_TRUE(status.ok()) << status;
  }
  // Server 1 owns the partition, and server 2 relays for the nodes of the span.
  void StartWithRelay(uint32_t nodes, const SumSpan& span) {
    Start(nodes, 2);
    TellJob();
    Own(1, {{.span = span, .relay = ServerId(2)}});
    Relay(2, {.span = span, .first_node = span.first, .before = {}, .to = ServerId(1)});
    Join(1, 0, span.first);
    Join(2, span.first, span.end());
    Join(1, span.end(), nodes);
  }
  // Nodes `first` to `end` - 1 contribute to the server.
  void Join(uint32_t server, uint32_t first, uint32_t end) {
    nodes_.resize(job_.num_nodes);
    for (uint32_t rank = first; rank < end; ++rank) {
      former_.push_back(std::move(nodes_[rank]));  // its link may be open
      nodes_[rank] = std::make_unique<Node>(loop_.get(), transport_.get(), ports_.at(server), rank);
      nodes_[rank]->op = op_;
      ASSERT_TRUE(nodes_[rank]->WaitForHello());
    }
  }
  std::vector<std::optional<Values>> Draw() {
    return DrawAll(job_.num_nodes, kElements, /*missing=*/0, &random_);
  }
  // All nodes push, in any order, and get the tree's result.
  void ExpectRound(uint64_t round) {
    const auto contributions = Draw();
    std::vector<uint32_t> order(job_.num_nodes);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const uint32_t rank : order) nodes_[rank]->Push(*contributions[rank], round);
    const Values expected = *TreeOf(contributions, &addend::Add);
    for (auto& node : nodes_) EXPECT_EQ(node->WaitForResult(round), expected);
  }
  void TearDown() override {
    loop_->Run([this] { transport_.reset(); });
    engines_.clear();
  }

  ReduceOp op_ = ReduceOp::kSum;
  JobSpec job_{
      .id = kJob, .generation = Generation(1), .plan_version = PlanVersion(1), .key = "secret"};
  std::mt19937 random_{20261129};
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<Transport> transport_;
  std::map<uint32_t, std::unique_ptr<Engine>> engines_;
  std::map<uint32_t, uint16_t> ports_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> former_;
};

TEST_F(EngineRelayTest, AWholeGroupComesAsItsSum) {
  StartWithRelay(17, {.first = 8, .count = 8});
  for (uint64_t round = 1; round <= 20; ++round) ExpectRound(round);
  EXPECT_EQ(engines_[1]->stats().partitions_sealed, 20u);
  EXPECT_EQ(nodes_[9]->contributors, 17u);
}

// Four racks of four: two ranks' groups of eight, each cut in two.
TEST_F(EngineRelayTest, HalfAGroupIsPassedOnFromRelayToRelay) {
  Start(16, 4);
  TellJob();
  Own(2, {{.span = {.first = 0, .count = 4}, .relay = ServerId(1)},
          {.span = {.first = 8, .count = 8}, .relay = ServerId(4)}});
  Relay(1, {.span = {.first = 0, .count = 4}, .first_node = 0, .before = {}, .to = ServerId(2)});
  Relay(3, {.span = {.first = 8, .count = 4}, .first_node = 8, .before = {}, .to = ServerId(4)});
  Relay(4, {.span = {.first = 8, .count = 8},
            .first_node = 12,
            .before = ServerId(3),
            .to = ServerId(2)});
  Join(1, 0, 4);
  Join(2, 4, 8);
  Join(3, 8, 12);
  Join(4, 12, 16);
  for (uint64_t round = 1; round <= 20; ++round) ExpectRound(round);
}

TEST_F(EngineRelayTest, SixtyFourNodesComeAsOneSum) {
  StartWithRelay(72, {.first = 0, .count = 64});
  for (uint64_t round = 1; round <= 3; ++round) ExpectRound(round);
}

// The scheduler's answer to whatever goes wrong: the owner recovers the partition under a new
// version, and the nodes contribute to it themselves.
TEST_F(EngineRelayTest, NodesGoToTheOwnerWhenTheRelayIsLost) {
  StartWithRelay(16, {.first = 8, .count = 8});
  ExpectRound(1);
  const auto contributions = Draw();
  for (uint32_t rank = 4; rank < 16; ++rank) nodes_[rank]->Push(*contributions[rank], 2);
  engines_.erase(2);
  ASSERT_TRUE(engines_[1]->Reserve(kJob, Tensor(/*version=*/5)).ok());
  Join(1, 8, 16);
  for (auto& node : nodes_) {
    node->version = 5;
    node->Report(5, 1);
  }
  for (auto& node : nodes_) EXPECT_EQ(node->WaitForRecovered(), Round(1));
  for (uint32_t rank = 0; rank < 16; ++rank) nodes_[rank]->Push(*contributions[rank], 2);
  const Values expected = *TreeOf(contributions, &addend::Add);
  for (auto& node : nodes_) EXPECT_EQ(node->WaitForResult(2), expected);
}

// The owner's link to the relay is new, and the sum is sent again; so is a result.
TEST_F(EngineRelayTest, ANodeThatConnectsAnewGetsTheResult) {
  StartWithRelay(9, {.first = 0, .count = 8});
  const auto contributions = Draw();
  for (uint32_t rank = 0; rank < 8; ++rank) nodes_[rank]->Push(*contributions[rank], 1);
  Join(2, 3, 4);  // its former link is closed
  nodes_[3]->Push(*contributions[3], 1);
  nodes_[8]->Push(*contributions[8], 1);
  const Values expected = *TreeOf(contributions, &addend::Add);
  for (auto& node : nodes_) EXPECT_EQ(node->WaitForResult(1), expected);
  Join(2, 5, 6);
  nodes_[5]->Push(*contributions[5], 1);
  EXPECT_EQ(nodes_[5]->WaitForResult(1), expected);
}

TEST_F(EngineRelayTest, NodesHearThroughTheRelayThatTheOwnerHasHandedOver) {
  StartWithRelay(9, {.first = 0, .count = 8});
  ExpectRound(1);
  nodes_[0]->Push(Values(kElements, 1), 2);  // too early
  engines_[1]->HandOver(kJob, kTensor, {0}, PlanVersion(3));
  for (auto& node : nodes_) {
    EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(3), Round(1)));
  }
}

TEST_F(EngineRelayTest, NodesHearThroughTheRelayThatTheGenerationHasFailed) {
  StartWithRelay(9, {.first = 0, .count = 8});
  ExpectRound(1);
  nodes_[2]->Push(Values(kElements, 1), 2);
  job_.failed = true;
  TellJob();
  EXPECT_EQ(nodes_[2]->WaitForAborted(), Round(2));
  nodes_[3]->Push(Values(kElements, 1), 2);
  EXPECT_EQ(nodes_[3]->WaitForAborted(), Round(2));
}

// It was not connected to the owner when the generation failed.
TEST_F(EngineRelayTest, ARelayAsksTheOwnerWhenItConnects) {
  StartWithRelay(9, {.first = 0, .count = 8});
  nodes_[8]->Push(Values(kElements, 1), 1);
  job_.failed = true;
  TellJob();
  EXPECT_EQ(nodes_[8]->WaitForAborted(), Round(1));
  nodes_[2]->Push(Values(kElements, 1), 1);
  EXPECT_EQ(nodes_[2]->WaitForAborted(), Round(1));
}

TEST_F(EngineRelayTest, AServerThatCannotBeReachedIsTold) {
  Start(9, 2);
  TellJob();
  Relay(2, {.span = {.first = 0, .count = 8}, .first_node = 0, .before = {}, .to = ServerId(1)});
  Join(2, 0, 8);
  engines_.erase(1);
  for (uint32_t rank = 0; rank < 8; ++rank) nodes_[rank]->Push(Values(kElements, 1), 1);
  while (engines_[2]->troubles().empty()) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_THAT(engines_[2]->troubles().at({kJob, ServerId(1)}), testing::HasSubstr("server 1"));
  engines_[2]->Release(kJob, kTensor);
  EXPECT_TRUE(engines_[2]->troubles().empty());
}

TEST_F(EngineRelayTest, NobodyElseSendsSums) {
  Start(9, 2);
  TellJob();
  Own(1, {{.span = {.first = 0, .count = 8}, .relay = ServerId(2)}});
  Join(1, 0, 1);
  nodes_[0]->PushSum(Values(kElements, 1), 1, {.first = 0, .count = 8});
  EXPECT_THAT(nodes_[0]->WaitForClose().message(), testing::HasSubstr("PARTIAL_SUM"));
  job_.peers.erase(ServerId(2));
  job_.id = JobId(8);
  TellJob();
  Node stranger(loop_.get(), transport_.get(), ports_[1], RelayId(ServerId(2)).value(),
                {.job = JobId(8)});
  EXPECT_FALSE(stranger.WaitForHello());
}

TEST_F(EngineRelayTest, OrdersThatTheTreeDoesNotHaveAreRefused) {
  Start(20, 2);
  TellJob();
  const auto refused = [&](const RelayOrder& order) {
    return absl::IsInvalidArgument(engines_[2]->Relay(kJob, Tensor(), {order}));
  };
  EXPECT_TRUE(refused({.span = {.first = 4, .count = 4}, .first_node = 4, .to = ServerId(1)}));
  EXPECT_TRUE(refused({.span = {.first = 0, .count = 8}, .first_node = 8, .to = ServerId(1)}));
  EXPECT_TRUE(refused({.span = {.first = 0, .count = 8}, .first_node = 4, .to = ServerId(1)}));
  EXPECT_TRUE(refused({.span = {.first = 0, .count = 8}, .first_node = 0, .to = ServerId(9)}));
  EXPECT_TRUE(refused({.span = {.first = 16, .count = 9}, .first_node = 16, .to = ServerId(1)}));
  op_ = ReduceOp::kBroadcast;
  EXPECT_TRUE(refused({.span = {.first = 0, .count = 8}, .first_node = 0, .to = ServerId(1)}));
}

// A scheduler that has lost its records gives a number again.
TEST_F(EngineRelayTest, AnotherTensorUnderTheNumberTakesItsPlace) {
  StartWithRelay(9, {.first = 0, .count = 8});
  const uint64_t before = engines_[2]->stats().memory_used_bytes;
  TensorSpec other = Tensor();
  other.name = "other";
  other.elements = other.partition_elements = 2 * kElements;
  ASSERT_TRUE(engines_[2]
                  ->Relay(kJob, other,
                          {{.span = {.first = 0, .count = 8}, .first_node = 0, .to = ServerId(1)}})
                  .ok());
  EXPECT_GE(engines_[2]->stats().memory_used_bytes, before + kElements * sizeof(float));
  nodes_[3]->Push(Values(2 * kElements, 1), 1);
  nodes_[4]->Push(Values(kElements, 1), 1);
  EXPECT_THAT(nodes_[4]->WaitForClose().message(), testing::HasSubstr("'other'"));
  EXPECT_FALSE(nodes_[3]->closed);
  engines_[2]->RetainOnly({{kJob, {}}}, {});
  EXPECT_LT(engines_[2]->stats().memory_used_bytes, before) << "of the former tensor";
}

TEST_F(EngineRelayTest, ARefusedOrderLeavesNothingBehind) {
  StartWithRelay(9, {.first = 0, .count = 8});
  const uint64_t before = engines_[2]->stats().memory_used_bytes;
  TensorSpec other = Tensor();
  other.name = "other";
  EXPECT_FALSE(engines_[2]
                   ->Relay(kJob, other,
                           {{.span = {.first = 0, .count = 8}, .first_node = 0, .to = ServerId(9)}})
                   .ok());
  EXPECT_EQ(engines_[2]->stats().memory_used_bytes, before);
  ExpectRound(1);
}

TEST_F(EngineRelayTest, MemoryOfRelaysIsReservedAndGivenBack) {
  Start(9, 2);
  TellJob();
  const uint64_t before = engines_[2]->stats().memory_used_bytes;
  Relay(2, {.span = {.first = 0, .count = 8}, .first_node = 0, .before = {}, .to = ServerId(1)});
  EXPECT_GE(engines_[2]->stats().memory_used_bytes, before + 2 * kElements * sizeof(float));
  engines_[2]->RetainOnly({{kJob, {}}}, {});
  EXPECT_EQ(engines_[2]->stats().memory_used_bytes, before);
}

}  // namespace
}  // namespace addend
