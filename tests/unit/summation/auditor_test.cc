// The integrity check of results: matches, mismatches, and abandoned audits.
#include "lib/summation/auditor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/wire/audit.h"
#include "lib/wire/crc32c.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint32_t kNodes = 3;

class AuditorTest : public testing::Test {
 protected:
  FrameHeader Header(uint32_t node, uint64_t round = 1) const {
    FrameHeader header;
    header.type = FrameType::kAudit;
    header.job = JobId(1);
    header.generation = Generation(1);
    header.sender = node;
    header.partition = PartitionId(TensorId(7), 2);
    header.round = Round(round);
    return header;
  }
  // The memory must live as long as a payload that is passed by reference.
  std::unique_ptr<EarlyContribution> Contribution(const std::vector<float>& values) {
    return std::make_unique<EarlyContribution>(
        Payload(std::as_bytes(std::span(values)), [this] { ++released_; }),
        /*empty=*/false);
  }
  void Contribute(uint32_t node, const std::vector<float>& values, uint64_t round = 1) {
    auditor_.OnContribution(Header(node, round), kNodes, kNodes, Contribution(values), now_);
  }
  void Digest(uint32_t node, const std::vector<float>& result, uint64_t round = 1) {
    FrameHeader header = Header(node, round);
    header.detail = Crc32c(std::as_bytes(std::span(result)));
    header.contributors = 5;  // the owner
    auditor_.OnDigest(header, now_);
  }
  std::vector<Auditor::Result> Results() const {
    std::vector<Auditor::Result> results;
    for (const auto& finding : findings_) results.push_back(finding.result);
    return results;
  }

  const std::vector<float> a_ = {1, 2}, b_ = {3, 4}, c_ = {5, 6}, sum_ = {9, 12},
                           average_ = {1.5f, 2};
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Auditor::Finding> findings_;
  int released_ = 0;  // contributions whose memory was given back
  Auditor auditor_{[this](const Auditor::Finding& finding) { findings_.push_back(finding); }};
};

TEST_F(AuditorTest, ResultsEqualToTheSecondSumMatch) {
  Digest(1, sum_);
  Contribute(2, c_);
  Contribute(0, a_);
  Digest(0, sum_);
  Contribute(1, b_);
  EXPECT_THAT(Results(), IsEmpty()) << "one digest is missing";
  Digest(2, sum_);
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kMatch));
  EXPECT_EQ(released_, 3);
}

TEST_F(AuditorTest, MismatchAtAllNodesNamesTheOwner) {
  const std::vector<float> wrong = {9, 12.000001f};
  for (uint32_t node = 0; node < kNodes; ++node) Digest(node, wrong);
  Contribute(0, a_);
  Contribute(1, b_);
  Contribute(2, c_);
  ASSERT_THAT(Results(), ElementsAre(Auditor::Result::kMismatch));
  EXPECT_THAT(findings_[0].text, HasSubstr("partition 2 of tensor 7, round 1"));
  EXPECT_THAT(findings_[0].text, HasSubstr("server 5 gave nodes 0, 1, 2"));
  EXPECT_THAT(findings_[0].text, HasSubstr("that server's memory or CPU"));
}

TEST_F(AuditorTest, MismatchAtASingleNodeNamesTheNode) {
  Contribute(0, a_);
  Contribute(1, b_);
  Contribute(2, c_);
  Digest(0, sum_);
  Digest(1, {9, 13});
  Digest(2, sum_);
  ASSERT_THAT(Results(), ElementsAre(Auditor::Result::kMismatch));
  EXPECT_THAT(findings_[0].text,
              HasSubstr("gave node 1 is another one: it was changed on its way"));
}

TEST_F(AuditorTest, EmptyContributionsAddNothing) {
  auditor_.OnContribution(Header(0), kNodes, kNodes,
                          std::make_unique<EarlyContribution>(Payload(), true), now_);
  Contribute(1, b_);
  Contribute(2, c_);
  for (uint32_t node = 0; node < kNodes; ++node) Digest(node, {8, 10});
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kMatch));
}

TEST_F(AuditorTest, AverageIsOverTheRanksOfAllNodes) {
  for (uint32_t node = 0; node < kNodes; ++node) {
    FrameHeader header = Header(node);
    header.op = ReduceOp::kAverage;
    const std::vector<float>& values = node == 0 ? a_ : node == 1 ? b_ : c_;
    auditor_.OnContribution(header, kNodes, /*ranks=*/2 * kNodes, Contribution(values), now_);
    header.detail = Crc32c(std::as_bytes(std::span(average_)));
    auditor_.OnDigest(header, now_);
  }
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kMatch));
}

TEST_F(AuditorTest, RoundInWhichNoNodeContributesMatches) {
  for (uint32_t node = 0; node < kNodes; ++node) {
    auditor_.OnContribution(Header(node), kNodes, kNodes,
                            std::make_unique<EarlyContribution>(Payload(), true), now_);
    Digest(node, {static_cast<float>(node)});
  }
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kMatch)) << "nothing was summed";
}

TEST_F(AuditorTest, ContributionOfAnotherTypeOrOperationAbandonsTheAudit) {
  Contribute(0, a_);
  FrameHeader header = Header(1);
  header.op = ReduceOp::kMax;
  auditor_.OnContribution(header, kNodes, kNodes, Contribution(b_), now_);
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned));
  Contribute(0, a_, 2);
  header = Header(1, 2);
  header.dtype = DType::kInt32;
  auditor_.OnContribution(header, kNodes, kNodes, Contribution(b_), now_);
  EXPECT_EQ(findings_.size(), 2u);
}

TEST_F(AuditorTest, AuditWithoutMemoryOrWithDifferentSizesIsAbandoned) {
  Contribute(0, a_);
  auditor_.OnContribution(Header(1), kNodes, kNodes, nullptr, now_);
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned));
  const std::vector<float> longer = {1, 2, 3};
  Contribute(0, a_, 2);
  Contribute(1, longer, 2);
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned, Auditor::Result::kAbandoned));
}

TEST_F(AuditorTest, AuditIsAbandonedAfterTheTimeLimitOrBeyondTheLimitOfOpenAudits) {
  Contribute(0, a_);
  auditor_.AbandonOlderThan(now_);
  EXPECT_THAT(Results(), IsEmpty());
  auditor_.AbandonOlderThan(now_ + absl::Seconds(1));
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned));
  for (uint64_t round = 1; round <= Auditor::kOpenMax + 1; ++round) {
    now_ += absl::Seconds(1);
    Contribute(0, a_, round);
  }
  EXPECT_EQ(findings_.size(), 2u) << "the oldest gave way";
}

TEST_F(AuditorTest, JobWithManyAuditsAbandonsItsOwnAndNotThoseOfAnotherJob) {
  Contribute(0, a_);
  for (uint64_t round = 1; round <= 3 * Auditor::kOpenMax; ++round) {
    now_ += absl::Seconds(1);
    FrameHeader header = Header(0, round);
    header.job = JobId(2);
    auditor_.OnContribution(header, kNodes, kNodes, Contribution(a_), now_);
  }
  ASSERT_FALSE(findings_.empty());
  for (const auto& finding : findings_) EXPECT_EQ(finding.job, JobId(2));
  Contribute(1, b_);
  Contribute(2, c_);
  for (uint32_t node = 0; node < kNodes; ++node) Digest(node, sum_);
  EXPECT_EQ(findings_.back().job, JobId(1));
  EXPECT_EQ(findings_.back().result, Auditor::Result::kMatch);
}

TEST_F(AuditorTest, AuditThatRefersToANodesMemoryIsAbandonedWhenItsLinkCloses) {
  Contribute(0, a_);
  Contribute(1, b_);
  auditor_.ForgetNode(JobId(1), NodeId(2));
  EXPECT_THAT(Results(), IsEmpty()) << "nothing of it is here";
  auditor_.ForgetNode(JobId(1), NodeId(1));
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned));
}

TEST_F(AuditorTest, LinkOfAnotherJobsNodeAbandonsNothing) {
  Contribute(0, a_);
  auditor_.ForgetNode(JobId(2), NodeId(0));
  auditor_.ForgetJob(JobId(2));
  EXPECT_THAT(Results(), IsEmpty());
  auditor_.AbandonOlderThan(absl::InfiniteFuture());
  EXPECT_THAT(Results(), ElementsAre(Auditor::Result::kAbandoned));
}

TEST_F(AuditorTest, AuditsOfAForgottenJobHaveNoFinding) {
  Contribute(0, a_);
  auditor_.ForgetJob(JobId(1));
  auditor_.AbandonOlderThan(absl::InfiniteFuture());
  EXPECT_THAT(Results(), IsEmpty());
}

TEST(AuditChoiceTest, RoundsAreChosenAtTheGivenRateAndTheServerIsNotTheOwner) {
  int audited = 0;
  for (uint32_t partition = 0; partition < 1000; ++partition) {
    for (uint64_t round = 1; round <= 100; ++round) {
      const PartitionId id(TensorId(3), partition);
      EXPECT_TRUE(IsAudited(id, Round(round), 1));
      EXPECT_FALSE(IsAudited(id, Round(round), 0));
      audited += IsAudited(id, Round(round), 1000);
      const std::vector<ServerId> servers = {ServerId(1), ServerId(2), ServerId(9)};
      const auto auditor = AuditorOf(id, Round(round), ServerId(2), servers);
      ASSERT_TRUE(auditor.has_value());
      EXPECT_NE(*auditor, ServerId(2));
    }
  }
  EXPECT_NEAR(audited, 100, 40);
  EXPECT_FALSE(AuditorOf(PartitionId(1), Round(1), ServerId(2), {ServerId(2)}).has_value());
}

TEST_F(AuditorTest, TensorOfSomeNodesIsCompleteWithTheirContributions) {
  for (const uint32_t node : {2u, 5u}) {
    auditor_.OnContribution(Header(node), /*nodes=*/2, /*ranks=*/2, Contribution(a_), now_);
    Digest(node, {});
  }
  EXPECT_EQ(findings_.size(), 1u);
}

TEST_F(AuditorTest, NodesThatDisagreeOnTheParticipantsEndTheAudit) {
  auditor_.OnContribution(Header(0), /*nodes=*/2, /*ranks=*/2, Contribution(a_), now_);
  auditor_.OnContribution(Header(1), /*nodes=*/3, /*ranks=*/3, Contribution(a_), now_);
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].result, Auditor::Result::kAbandoned);
}

}  // namespace
}  // namespace addend
