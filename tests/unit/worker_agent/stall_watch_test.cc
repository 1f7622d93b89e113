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
  ASSERT_EQ(node_.reports.said.back(), "beat");
  node_.reports.said.pop_back();
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

TEST_F(StallWatchTest, NamesTheSchedulerThatHasToConfirmTheNodeAfterAPause) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2}).ok());
  node_.pulse.Beat(node_.loop.Now(), absl::Seconds(10));
  node_.pulse.Beat(node_.loop.Now() + absl::Seconds(10), absl::Seconds(10));
  EXPECT_THAT(After(absl::Seconds(10)),
              ElementsAre(HasSubstr("the scheduler has not confirmed yet that its node")));
}

TEST_F(StallWatchTest, SaysForWhatTheMissingRankWaitsInstead) {
  const std::shared_ptr<NodeTensor> other = generation_.Declare(Floats("u", 2));
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(other, 1, {1, 2}).ok());
  EXPECT_THAT(After(absl::Seconds(10)),
              ElementsAre("round 1 of tensor 't' is open for 10 s: rank 3 of this node has not "
                          "pushed it, and rank 3 waits for tensor 'u' instead (its round 1)",
                          "round 1 of tensor 'u' is open for 10 s: rank 2 of this node has not "
                          "pushed it, and rank 2 waits for tensor 't' instead (its round 1)"));
}

TEST_F(StallWatchTest, EveryRankOfTheNodeIsTold) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  const std::vector<std::string> texts = After(absl::Seconds(10));
  ASSERT_EQ(texts.size(), 1u);
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(generation_.trainers.at(rank)->Last<ipc::ProgressMessage>().text, texts[0]);
  }
}

TEST_F(StallWatchTest, TrainersAreToldOfTheFourThatAreOpenLongest) {
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    ASSERT_TRUE(generation_.Push(generation_.Declare(Floats(name, 2)), 0, {1, 2}).ok());
  }
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  const size_t before = generation_.trainers.at(0)->sent.size();
  EXPECT_EQ(After(absl::Seconds(10)).size(), 6u) << "the log has all of them";
  EXPECT_EQ(generation_.trainers.at(0)->sent.size() - before, 5u);
  EXPECT_EQ(generation_.trainers.at(0)->Last<ipc::ProgressMessage>().text,
            "2 more tensors are open as well: the agent's log names them");
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

v1::NodeUpdate Says(const std::string& name, const std::string& text, double open_s,
                    uint32_t missing) {
  v1::NodeUpdate update;
  v1::Stall* const stall = update.add_stalls();
  stall->set_name(name);
  stall->set_round(1);
  stall->set_text(text);
  stall->set_open_s(open_s);
  stall->add_missing_nodes(missing);
  return update;
}

TEST_F(StallWatchTest, SaysWhomTheSchedulerHasNamed) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  ASSERT_TRUE(generation_.Push(tensor_, 1, {1, 2}).ok());
  watch_.Apply(Says("t", "node 0 is missing", 5, 0));
  EXPECT_THAT(After(absl::Seconds(10)),
              ElementsAre("round 1 of tensor 't' is open for 10 s: node 0 is missing"));
}

TEST_F(StallWatchTest, RanksThatOthersWaitForAreTold) {
  watch_.Apply(Says("far", "node 1 is missing", 5, /*missing=*/1));
  After(absl::Seconds(4));
  EXPECT_THAT(generation_.trainers.at(0)->types(),
              testing::Not(testing::Contains(ipc::Type::kProgress)));
  After(absl::Seconds(1));
  EXPECT_EQ(generation_.trainers.at(0)->Last<ipc::ProgressMessage>().text,
            "round 1 of tensor 'far' is open for 10 s on other nodes: node 1 is missing");
}

TEST_F(StallWatchTest, RanksOfOtherNodesAreNotTold) {
  watch_.Apply(Says("far", "node 0 is missing", 100, /*missing=*/0));
  After(absl::Seconds(1));
  EXPECT_THAT(generation_.trainers.at(0)->types(),
              testing::Not(testing::Contains(ipc::Type::kProgress)));
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
