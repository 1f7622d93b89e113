// Audits, and the search for values that are not finite.
#include "services/worker_agent/integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lib/wire/crc32c.h"
#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class IntegrityTest : public ::testing::Test {
 protected:
  // Server 2 owns the partition; server 3 can audit it.
  void Plan(ReduceOp op = ReduceOp::kSum) {
    node_.options.audit_one_in = 1;
    node_.AddServer(3);
    tensor_ = generation_.Declare(Floats("t", 2, op));
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2}));
    owner_ = node_.tcp.Open();
  }
  void PushAll(const std::vector<float>& first = {1, 2}) {
    ASSERT_TRUE(generation_.Push(tensor_, 0, first).ok());
    ASSERT_TRUE(generation_.Push(tensor_, 1, {10, 20}).ok());
    node_.loop.Settle();
  }
  void Result(const std::vector<float>& values, uint16_t flags = 0) {
    FrameHeader header = generation_.FrameOf(FrameType::kResult, *tensor_, 0);
    header.flags = flags;
    ASSERT_TRUE(owner_->Deliver(header, FloatBytes(values)).ok());
  }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  std::shared_ptr<NodeTensor> tensor_;
  FakeLink* owner_ = nullptr;
};

TEST_F(IntegrityTest, AuditorGetsACopyAndLaterTheChecksumOfTheResult) {
  Plan();
  PushAll();
  ASSERT_EQ(node_.tcp.attempts.size(), 1u) << "a link to the auditor";
  EXPECT_EQ(node_.tcp.attempts.front().shard, 0u);
  FakeLink* const auditor = node_.tcp.Open();
  ASSERT_THAT(auditor->types(), ElementsAre(FrameType::kAudit));
  EXPECT_EQ(auditor->frames[0].payload, FloatBytes({11, 22}));
  EXPECT_EQ(auditor->frames[0].header.priority, INT32_MIN) << "behind all other frames";
  Result({7, 8});
  ASSERT_THAT(auditor->types(), ElementsAre(FrameType::kAudit, FrameType::kAuditDigest));
  EXPECT_EQ(auditor->frames[1].header.detail, Crc32c(FloatBytes({7, 8})));
  EXPECT_EQ(auditor->frames[1].header.contributors, 2u) << "the owner";
}

TEST_F(IntegrityTest, BroadcastsAreNotAudited) {
  Plan(ReduceOp::kBroadcast);
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {}).ok());
  EXPECT_THAT(node_.tcp.attempts, IsEmpty());
}

TEST_F(IntegrityTest, OwnerAloneIsNotAudited) {
  Plan();
  node_.directory.servers.erase(3);
  PushAll();
  EXPECT_THAT(node_.tcp.attempts, IsEmpty());
}

TEST_F(IntegrityTest, FailingGenerationIsNotAudited) {
  Plan();
  PushAll();
  FakeLink* const auditor = node_.tcp.Open();
  generation_.state.Fail(absl::InternalError("why"));
  Result({7, 8});
  EXPECT_THAT(auditor->types(), ElementsAre(FrameType::kAudit)) << "no digest follows";
}

TEST_F(IntegrityTest, EmptyContributionIsAuditedAsSuch) {
  Plan();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(generation_.Push(tensor_, rank, {}).ok());
  }
  node_.loop.Settle();
  FakeLink* const auditor = node_.tcp.Open();
  ASSERT_THAT(auditor->types(), ElementsAre(FrameType::kAudit));
  EXPECT_EQ(auditor->frames[0].header.flags, kFlagEmpty);
  EXPECT_EQ(auditor->frames[0].header.round, Round(1));
  EXPECT_THAT(auditor->frames[0].payload, IsEmpty());
}

TEST_F(IntegrityTest, JobWithoutAllNodesIsNotAudited) {
  Plan();
  generation_.nodes.taking_part = 1;
  PushAll();
  EXPECT_THAT(node_.tcp.attempts, IsEmpty());
}

TEST_F(IntegrityTest, RankThatPushedAnInfinityIsNamedOnceAndCounted) {
  Plan();
  const float infinity = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 2; ++round) {
    PushAll({1, infinity});
    Result({11, infinity}, kFlagNonFinite);
  }
  EXPECT_EQ(node_.counters.nonfinite_results, 2u);
  EXPECT_THAT(node_.counters.nonfinite, ElementsAre(2, 0));
  const auto incidents = node_.incidents.Take();
  ASSERT_EQ(incidents.size(), 1u);
  EXPECT_EQ(incidents[0].kind, "nonfinite");
  EXPECT_FALSE(incidents[0].follows);
  EXPECT_EQ(incidents[0].text,
            "rank 2 pushed a value that is not finite: element 1 of tensor 't' in round 1");
}

TEST_F(IntegrityTest, InfinityBehindAnotherNodesIsToldAsItsConsequence) {
  Plan();
  const float infinity = std::numeric_limits<float>::infinity();
  PushAll();
  Result({1, infinity}, kFlagNonFinite);
  PushAll({1, infinity});
  Result({11, infinity}, kFlagNonFinite);
  const auto incidents = node_.incidents.Take();
  ASSERT_EQ(incidents.size(), 1u);
  EXPECT_TRUE(incidents[0].follows);
}

TEST_F(IntegrityTest, SumThatOverflowsIsNoRanksFault) {
  Plan();
  PushAll();
  Result({1, std::numeric_limits<float>::infinity()}, kFlagNonFinite);
  EXPECT_EQ(node_.counters.nonfinite_results, 1u);
  EXPECT_THAT(node_.counters.nonfinite, ElementsAre(0, 0));
  EXPECT_THAT(node_.incidents.Take(), IsEmpty());
}

}  // namespace
}  // namespace addend
