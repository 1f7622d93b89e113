// Members of other versions: refused, or without anything to sum.
#include <gmock/gmock.h>

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/version.h"
#include "lib/member/protocols.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class VersionsTest : public ClusterTest {
 protected:
  static void Speak(const VersionRange& frames, v1::Protocols* protocols) {
    Fill(frames, protocols->mutable_frame());
  }
  // A CPU server that speaks these versions of the frame protocol.
  FakeServer& AddServerOf(const VersionRange& frames) {
    Speak(frames, &speaks_);
    return AddCpuServer();
  }
  absl::Status RegisterNodeOf(const VersionRange& frames, uint32_t rank) {
    v1::RegisterNodeRequest request = NodeRequest("a", rank, 2);
    Speak(frames, request.mutable_protocols());
    auto [response, decision] = membership_->RegisterNode(now_, request);
    Apply(std::move(decision));
    return response.status();
  }
  static bool Uses(const v1::TensorPlan& plan, const FakeServer& server) {
    return std::count(plan.servers().begin(), plan.servers().end(), server.id) > 0;
  }
  static constexpr VersionRange kNewer{protocol::kFrame.newest + 1, protocol::kFrame.newest + 2};
  static constexpr VersionRange kBoth{protocol::kFrame.oldest, protocol::kFrame.newest + 1};
};

TEST_F(VersionsTest, ServerWithoutACommonVersionIsPlannedAround) {
  FakeServer& newer = AddServerOf(kNewer);
  FakeServer& both = AddServerOf(kBoth);
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_FALSE(Uses(nodes[0]->plans.at("w"), newer));
  EXPECT_TRUE(Uses(nodes[0]->plans.at("w"), both));
  EXPECT_TRUE(newer.jobs.empty()) << "it is told of no job that it cannot serve";
}

TEST_F(VersionsTest, JoiningServerWithoutACommonVersionGetsNothing) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Pass(absl::Seconds(1));
  FakeServer& newer = AddServerOf(kNewer);
  Pass(absl::Seconds(1));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  EXPECT_FALSE(Uses(nodes[0]->plans.at("w"), newer));
}

TEST_F(VersionsTest, VersionRangesSurviveARestart) {
  FakeServer& newer = AddServerOf(kNewer);
  const auto nodes = AddJob("a", 2);
  Restart();
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_FALSE(Uses(nodes[0]->plans.at("w"), newer));
}

TEST_F(VersionsTest, NodeWithoutACommonVersionIsRefused) {
  ASSERT_TRUE(RegisterNodeOf(protocol::kFrame, 0).ok());
  const absl::Status refused = RegisterNodeOf(kNewer, 1);
  EXPECT_EQ(KindOf(refused), FailureKind::kVersion);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Describe(kNewer)));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Describe(protocol::kFrame)));
  EXPECT_TRUE(RegisterNodeOf(kBoth, 1).ok());
}

TEST_F(VersionsTest, ColocatedServerWithoutACommonVersionIsRefused) {
  ASSERT_TRUE(RegisterNodeOf(protocol::kFrame, 0).ok());
  v1::RegisterServerRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_incarnation(900);
  request.set_shards(1);
  request.set_member_key(kKey);
  request.set_colocated_job("a");
  request.set_colocated_node(1);
  request.add_endpoints()->set_port(1);
  Speak(kNewer, request.mutable_protocols());
  EXPECT_EQ(KindOf(membership_->RegisterServer(now_, request).answer.status()),
            FailureKind::kVersion);
}

TEST_F(VersionsTest, ControlPlaneVersionsMustMeet) {
  v1::RegisterNodeRequest request = NodeRequest("a", 0, 2);
  request.set_protocol_version(kProtocolVersion + 3);
  const absl::Status refused = membership_->RegisterNode(now_, request).answer.status();
  EXPECT_EQ(KindOf(refused), FailureKind::kVersion);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("version 4"));
  request.set_oldest_protocol_version(kProtocolVersion);
  EXPECT_TRUE(membership_->RegisterNode(now_, request).answer.ok());
}

TEST_F(VersionsTest, InvalidVersionRangeIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(RegisterNodeOf({7, 6}, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(RegisterNodeOf({0, 6}, 0)));
}

v1::Protocols FramesFrom(uint32_t oldest, uint32_t newest) {
  v1::Protocols protocols;
  Fill({oldest, newest}, protocols.mutable_frame());
  return protocols;
}

TEST(FrameRangesTest, MemberNeedsAVersionInCommonWithEachPresentNode) {
  FrameRanges ranges;
  EXPECT_TRUE(ranges.AllSpeakWith(FramesFrom(1, 1)));
  ranges.Add(FramesFrom(1, 5));
  ranges.Add(FramesFrom(3, 9));
  ranges.Add(FramesFrom(3, 9));
  EXPECT_FALSE(ranges.AllSpeakWith(FramesFrom(1, 2)));
  EXPECT_TRUE(ranges.AllSpeakWith(FramesFrom(1, 3)));
  EXPECT_TRUE(ranges.AllSpeakWith(FramesFrom(5, 9)));
  EXPECT_FALSE(ranges.AllSpeakWith(FramesFrom(6, 9)));
  ranges.Remove(FramesFrom(1, 5));
  EXPECT_TRUE(ranges.AllSpeakWith(FramesFrom(6, 9)));
  ranges.Remove(FramesFrom(3, 9));
  EXPECT_FALSE(ranges.AllSpeakWith(FramesFrom(1, 2)));
  ranges.Remove(FramesFrom(3, 9));
  EXPECT_TRUE(ranges.AllSpeakWith(FramesFrom(1, 2)));
}

TEST(FrameRangesTest, CostDoesNotGrowWithTheNumberOfRanges) {
  constexpr uint32_t kNodes = 30'000;
  FrameRanges ranges;
  for (uint32_t node = 0; node < kNodes; ++node) ranges.Add(FramesFrom(1, 10 + node));
  const absl::Time start = SteadyNow();
  for (uint32_t node = 0; node < kNodes; ++node) {
    ASSERT_TRUE(ranges.AllSpeakWith(FramesFrom(1, 10 + node)));
  }
  EXPECT_LT(SteadyNow() - start, absl::Seconds(1)) << "0.9 billion steps are a quadratic search";
}

}  // namespace
}  // namespace addend
