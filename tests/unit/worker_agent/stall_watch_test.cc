// Rounds that stay open.
#include "services/worker_agent/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StallWatchTest : public DeclaredTensorTest {
 protected:
  // The texts of the warnings after the time.
  std::vector<std::string> After(absl::Duration time) {
    node_.loop.Pass(time);
    watch_.Check(*generation_.rounds.source());
    std::vector<std::string> texts;
    for (const auto& incident : node_.incidents.Take()) texts.push_back(incident.text);
    return texts;
  }

  StallWatch watch_{generation_.context, &generation_.ranks, &generation_.tensors,
                    &generation_.state};
};

TEST_F(StallWatchTest, WarnsTwiceAndFailsTheGeneration) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  EXPECT_THAT(After(absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(After(absl::Seconds(2)),
              ElementsAre("round 1 of tensor 't' is open for 11 s: rank 3 of this node has not "
                          "pushed it"));
  EXPECT_THAT(After(absl::Seconds(30)), IsEmpty());
  EXPECT_EQ(After(absl::Seconds(20)).size(), 1u);
  EXPECT_THAT(After(absl::Seconds(200)), IsEmpty());
  EXPECT_TRUE(generation_.state.running());
  After(absl::Seconds(100));
  EXPECT_FALSE(generation_.state.running());
  EXPECT_THAT(node_.reports.said.back(), HasSubstr("failed stalled: round 1 of tensor 't'"));
}

TEST_F(StallWatchTest, NamesTheReason) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2}).ok());
  EXPECT_THAT(After(absl::Seconds(10)), ElementsAre(HasSubstr("another node has not declared it")));
  generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2}));
  EXPECT_THAT(After(absl::Seconds(50)),
              ElementsAre(HasSubstr("another node has not ('addendctl why job' names it)")));
}

TEST_F(StallWatchTest, WarningsAndTheErrorComeAtTheirLimit) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  EXPECT_EQ(After(absl::Seconds(10)).size(), 1u);
  EXPECT_THAT(After(absl::Seconds(49)), IsEmpty());
  EXPECT_EQ(After(absl::Seconds(1)).size(), 1u);
  EXPECT_THAT(After(absl::Seconds(239)), IsEmpty());
  EXPECT_TRUE(generation_.state.running());
  After(absl::Seconds(1));
  EXPECT_FALSE(generation_.state.running());
}

TEST_F(StallWatchTest, FailingGenerationIsNotWatched) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  generation_.state.Fail(absl::InternalError("why"));
  EXPECT_THAT(After(absl::Seconds(20)), IsEmpty());
}

TEST_F(StallWatchTest, ClosedRoundDoesNotStall) {
  EXPECT_THAT(After(absl::Seconds(1000)), IsEmpty());
  EXPECT_TRUE(generation_.state.running());
}

}  // namespace
}  // namespace addend
