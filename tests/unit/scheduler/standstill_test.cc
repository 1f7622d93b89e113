// Rounds that stay open: the missing ranks, their own waits, and operations that clash.
#include "services/scheduler/standstill.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Listed {
  std::string name;
  double open_s = 5;
  uint64_t round = 1;
  std::vector<uint32_t> missing = {};
};

class StandstillTest : public JobScopeTest {
 protected:
  void SetUp() override { AddNodes(3); }
  Standstill::News Take(uint32_t node, const std::vector<Listed>& listed, uint64_t answer = 0) {
    NextEvent();
    v1::HeartbeatRequest beat;
    beat.set_answer(answer);
    for (const Listed& one : listed) {
      v1::StalledRound* const stalled = beat.add_stalled();
      stalled->set_name(one.name);
      stalled->set_round(one.round);
      stalled->set_open_s(one.open_s);
      for (const uint32_t rank : one.missing) stalled->add_missing(rank);
    }
    return standstill_.Take(job_, NodeId(node), beat, now_, [this] { return ++questions_; });
  }
  std::vector<std::string> Texts() const {
    v1::NodeUpdate update;
    standstill_.Fill(&update);
    std::vector<std::string> texts;
    for (const v1::Stall& stall : update.stalls())
      texts.push_back(stall.name() + ": " + stall.text());
    return texts;
  }
  std::vector<std::string> Asked() const {
    v1::NodeUpdate update;
    standstill_.Fill(&update);
    return {update.asked().begin(), update.asked().end()};
  }

  Standstill standstill_;
  uint64_t questions_ = 0;
};

TEST_F(StandstillTest, NodeThatDoesNotListARoundHasNotPushedIt) {
  EXPECT_TRUE(Take(0, {{"a"}}).told);
  EXPECT_THAT(Texts(),
              ElementsAre("a: node 1 (on gpu1, rank 1) has not pushed it; node 2 (on gpu2, "
                          "rank 2) has not pushed it"));
  EXPECT_TRUE(Take(2, {{"a"}}).told);
  EXPECT_TRUE(Take(1, {{"b", 9}}).told);
  EXPECT_THAT(Texts(),
              ElementsAre(HasSubstr("b: node 0 (on gpu0, rank 0) has not pushed it, and waits for "
                                    "tensor 'a' instead (its round 1)"),
                          "a: node 1 (on gpu1, rank 1) has not pushed it, and waits for tensor 'b' "
                          "instead (its round 1)"));
  Take(0, {});
  Take(1, {});
  Take(2, {});
  EXPECT_THAT(Texts(), ElementsAre());
}

TEST_F(StandstillTest, NodeThatHasUndeclaredTheTensorIsNotMissing) {
  Declared("a", 3).undeclared.Insert(NodeId(1));
  Take(1, {});
  Take(0, {{"a"}});
  EXPECT_THAT(Texts(), ElementsAre("a: node 2 (on gpu2, rank 2) has not pushed it"));
}

TEST_F(StandstillTest, RankOfANodeThatHasPushedInPartIsNamed) {
  job_.settings.set_local_size(2);
  Take(0, {{"a"}});
  Take(2, {{"a"}});
  Take(1, {{"a", 5, 1, {3}}, {"b", 5, 1, {2}}});
  EXPECT_THAT(Texts(), testing::Contains(
                           "a: rank 3 of node 1 (on gpu1) has not pushed it, and waits for tensor "
                           "'b' instead (its round 1)"));
}

TEST_F(StandstillTest, ShortWaitsAreNotExplained) {
  EXPECT_FALSE(Take(0, {{"a", 2}}).told);
  EXPECT_THAT(Texts(), ElementsAre());
}

TEST_F(StandstillTest, LostAndIdleNodesAreNeitherMissingNorHeard) {
  Take(2, {{"a"}});
  job_.current.gone[NodeId(2)] = "lost";
  job_.nodes.at(NodeId(1)).idle = true;
  Take(0, {{"b"}});
  EXPECT_THAT(Texts(), ElementsAre()) << "nobody is missing, and nobody else waits";
}

const char* const kThree = "addend.unnamed/allreduce/float32[3]/0/0";
const char* const kFour = "addend.unnamed/allreduce/float32[4]/0/0";

TEST_F(StandstillTest, OperationsWithoutANameClashWhenBothNodesHaveSaidSo) {
  EXPECT_FALSE(Take(0, {{kThree, 1}}).told);
  EXPECT_TRUE(Take(1, {{kFour, 1}}).told);
  EXPECT_THAT(Asked(), ElementsAre(kThree, kFour));
  const uint64_t asked = questions_;
  EXPECT_FALSE(Take(0, {{kThree, 1}, {kFour, 0, 0, {0}}}, asked).clash);
  const Standstill::News news = Take(1, {{kFour, 1}, {kThree, 0, 0, {1}}}, asked);
  ASSERT_TRUE(news.clash);
  EXPECT_EQ(news.clash->message,
            "rank 0 calls 'allreduce/float32[3]' where rank 1 calls 'allreduce/float32[4]': all "
            "ranks must call operations without a name in the same order, with the same shapes and "
            "types");
  EXPECT_FALSE(Take(1, {{kFour, 2}, {kThree, 0, 0, {1}}}, asked).clash) << "told once";
}

TEST_F(StandstillTest, RankThatHasItsResultAlreadyClashesWithNobody) {
  Take(0, {{kThree, 1}});
  Take(1, {{kFour, 1}});
  const uint64_t asked = questions_;
  // Rank 1 has completed round 1 of the first operation: rank 0's result is late.
  EXPECT_FALSE(Take(1, {{kFour, 1}, {kThree, 0, 2, {1}}}, asked).clash);
  EXPECT_FALSE(Take(0, {{kThree, 1}, {kFour, 0, 0, {0}}}, asked).clash);
}

TEST_F(StandstillTest, NamedTensorsNeverClash) {
  Take(0, {{"a", 1}});
  Take(1, {{"b", 1}});
  EXPECT_EQ(questions_, 0u);
}

TEST_F(StandstillTest, QuestionIsWithdrawnWhenNobodyWaits) {
  Take(0, {{kThree, 1}});
  Take(1, {{kFour, 1}});
  Take(0, {}, questions_);
  const Standstill::News news = Take(1, {}, questions_);
  EXPECT_TRUE(news.told);
  EXPECT_THAT(Asked(), ElementsAre());
  EXPECT_FALSE(Take(1, {}).told) << "once";
}

TEST_F(StandstillTest, OperationThatNobodyElseHasDeclaredIsAskedForOnce) {
  Declared(kThree, 3).stage = v1::AgreementRecord::COLLECTING;
  EXPECT_TRUE(Take(0, {{kThree, 1}}).told);
  EXPECT_THAT(Asked(), ElementsAre(kThree));
  NextEvent(absl::Seconds(5));
  EXPECT_FALSE(Take(0, {{kThree, 1}}).told);
}

}  // namespace
}  // namespace addend
