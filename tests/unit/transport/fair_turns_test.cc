// Groups of links that wait for their turns.
#include "lib/transport/fair_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

namespace addend {
namespace {

constexpr size_t kQuantum = FairTurns::kQuantum;
constexpr size_t kPlenty = size_t{1} << 40;
constexpr FairTurns::GroupId kJobA = 1;
constexpr FairTurns::GroupId kJobB = 2;

// A link in which so many bytes wait.
class FakeLink : public FairTurns::Waiter {
 public:
  explicit FakeLink(size_t waiting) : waiting(waiting) {}
  Work Serve(size_t most) override {
    offered.push_back(most);
    if (when_served) when_served();
    const size_t bytes = std::min({waiting, most, at_once});
    waiting -= bytes;
    served += bytes;
    return {bytes, waiting > 0};
  }
  size_t waiting;
  size_t served = 0;
  size_t at_once = kPlenty;
  std::vector<size_t> offered;
  std::function<void()> when_served;
};

class FairTurnsTest : public testing::Test {
 protected:
  FakeLink* AddLink(FairTurns::GroupId group, size_t waiting = kPlenty) {
    links_.push_back(std::make_unique<FakeLink>(waiting));
    turns_.Join(links_.back().get(), group);
    if (waiting > 0) turns_.Wait(links_.back().get());
    return links_.back().get();
  }
  std::vector<FakeLink*> AddLinks(FairTurns::GroupId group, int count) {
    std::vector<FakeLink*> links;
    for (int i = 0; i < count; ++i) links.push_back(AddLink(group));
    return links;
  }
  static size_t Served(const std::vector<FakeLink*>& links) {
    size_t bytes = 0;
    for (const FakeLink* link : links) bytes += link->served;
    return bytes;
  }
  void Run(int times) {
    for (int i = 0; i < times; ++i) turns_.Run();
  }

  FairTurns turns_;
  std::vector<std::unique_ptr<FakeLink>> links_;
};

TEST_F(FairTurnsTest, ManyLinksDoNotIncreaseAJobsShare) {
  const auto many = AddLinks(kJobA, 100);
  const auto few = AddLinks(kJobB, 1);
  Run(50);
  EXPECT_EQ(Served(many), 50 * kQuantum);
  EXPECT_EQ(Served(few), 50 * kQuantum);
}

TEST_F(FairTurnsTest, TheLinksOfAJobTakeTurnsFromWhereTheLastOneStopped) {
  const auto links = AddLinks(kJobA, 3);
  for (FakeLink* link : links) link->at_once = kQuantum / 2;
  Run(3);
  for (const FakeLink* link : links) EXPECT_EQ(link->served, kQuantum);
}

TEST_F(FairTurnsTest, ExcessOverTheQuantumIsSubtractedFromTheNext) {
  FakeLink* const coarse = AddLink(kJobA);
  FakeLink* const fine = AddLink(kJobB);
  // Work comes in pieces: it is offered little, and does three quanta.
  class Coarse : public FairTurns::Waiter {
   public:
    Work Serve(size_t) override { return {3 * kQuantum, ++times < 1000}; }
    size_t times = 0;
  } pieces;
  turns_.Leave(coarse);
  turns_.Join(&pieces, kJobA);
  turns_.Wait(&pieces);
  Run(30);
  EXPECT_EQ(pieces.times, 10u);
  EXPECT_EQ(fine->served, 30 * kQuantum);
  turns_.Leave(&pieces);
}

TEST_F(FairTurnsTest, AnIdleJobSavesNoTime) {
  FakeLink* const idle = AddLink(kJobA, /*waiting=*/1);
  FakeLink* const busy = AddLink(kJobB);
  Run(100);
  EXPECT_EQ(idle->served, 1u);
  idle->waiting = kPlenty;
  turns_.Wait(idle);
  const size_t before = busy->served;
  Run(10);
  EXPECT_EQ(idle->served, 1 + 10 * kQuantum);
  EXPECT_EQ(busy->served - before, 10 * kQuantum);
}

TEST_F(FairTurnsTest, AJobAloneGetsEverything) {
  const auto links = AddLinks(kJobA, 4);
  Run(8);
  EXPECT_EQ(Served(links), 8 * kQuantum);
  EXPECT_TRUE(turns_.AnyoneWaits()) << "the next turn follows at once";
  for (FakeLink* link : links) link->waiting = std::min<size_t>(link->waiting, 1);
  Run(1);
  EXPECT_FALSE(turns_.AnyoneWaits());
}

TEST_F(FairTurnsTest, SharesFollowTheWeights) {
  turns_.SetWeight(kJobA, 3);
  turns_.SetWeight(kJobB, 0.5);
  FakeLink* const a = AddLink(kJobA);
  FakeLink* const b = AddLink(kJobB);
  Run(20);
  EXPECT_EQ(a->served, 60 * kQuantum);
  EXPECT_EQ(b->served, 10 * kQuantum);
}

TEST_F(FairTurnsTest, SmallWeightsAreServedInEveryTurn) {
  constexpr FairTurns::GroupId kStrangers = 77;
  turns_.SetWeight(kStrangers, 1.0 / 32);
  FakeLink* const job = AddLink(kJobA);
  const auto strangers = AddLinks(kStrangers, 1000);
  for (FakeLink* link : strangers) link->waiting = 128;  // a HELLO
  Run(10);
  EXPECT_EQ(Served(strangers), 1000u * 128);
  EXPECT_EQ(job->served, 10 * kQuantum);
  for (const FakeLink* link : strangers) EXPECT_LE(link->offered[0], kQuantum / 32);
}

TEST_F(FairTurnsTest, ALinkIsOfferedAtLeastTheLeastOffer) {
  FakeLink* const first = AddLink(kJobA, kQuantum - 1);
  FakeLink* const second = AddLink(kJobA, 1);
  Run(1);
  EXPECT_EQ(first->served, kQuantum - 1);
  EXPECT_EQ(second->offered, std::vector<size_t>{FairTurns::kLeastOffer});
}

TEST_F(FairTurnsTest, ALinkMayLeaveInItsOwnTurn) {
  FakeLink* const leaves = AddLink(kJobA);
  FakeLink* const stays = AddLink(kJobA);
  leaves->when_served = [&] { turns_.Leave(leaves); };
  Run(3);
  EXPECT_EQ(leaves->offered.size(), 1u);
  EXPECT_EQ(stays->served, 2 * kQuantum);
  turns_.Leave(leaves);
  turns_.Wait(leaves);
  Run(1);
  EXPECT_EQ(leaves->offered.size(), 1u) << "who has left is asked no more";
}

TEST_F(FairTurnsTest, TheLastLinkOfAJobMayLeaveInItsTurnAndAnotherCome) {
  FakeLink* const last = AddLink(kJobA);
  FakeLink* const next = AddLink(kJobB, 0);
  last->when_served = [&] {
    turns_.Leave(last);
    turns_.Join(next, kJobA);
    next->waiting = kPlenty;
    turns_.Wait(next);
  };
  Run(4);
  EXPECT_EQ(last->offered.size(), 1u);
  EXPECT_EQ(next->served, 3 * kQuantum);
}

TEST_F(FairTurnsTest, ALinkThatOthersCloseIsNotServed) {
  FakeLink* const closes = AddLink(kJobA);
  FakeLink* const closed = AddLink(kJobB);
  closes->when_served = [&] { turns_.Leave(closed); };
  Run(3);
  EXPECT_TRUE(closed->offered.empty());
  EXPECT_EQ(closes->served, 3 * kQuantum);
}

TEST_F(FairTurnsTest, ALinkThatNamesItsJobJoinsThatGroup) {
  constexpr FairTurns::GroupId kStrangers = 77;
  FakeLink* const link = AddLink(kStrangers);
  FakeLink* const other = AddLink(kJobB);
  link->when_served = [&] {
    link->when_served = nullptr;
    turns_.Join(link, kJobA);
  };
  Run(1);
  const size_t as_stranger = link->served;
  Run(10);
  EXPECT_EQ(link->served - as_stranger, 10 * kQuantum);
  EXPECT_EQ(other->served, 11 * kQuantum);
}

TEST_F(FairTurnsTest, ALinkThatStartsToWaitIsServedInTheSameTurnWhileItsJobHasCredit) {
  FakeLink* const reader = AddLink(kJobA, 100);
  FakeLink* const writer = AddLink(kJobA, 0);
  reader->when_served = [&] {
    writer->waiting = 100;
    turns_.Wait(writer);
    turns_.Wait(writer);
  };
  Run(1);
  EXPECT_EQ(writer->served, 100u);
  EXPECT_EQ(writer->offered.size(), 1u);
}

TEST(TimedFairTurnsTest, WhileOthersWaitTheTimeCounts) {
  int64_t now = 0;
  FairTurns turns([&now] { return now; });
  FakeLink slow(kPlenty);
  FakeLink fast(kPlenty);
  slow.when_served = [&] { now += 4 * static_cast<int64_t>(kQuantum); };
  fast.when_served = [&] { now += static_cast<int64_t>(kQuantum); };
  turns.Join(&slow, kJobA);
  turns.Join(&fast, kJobB);
  turns.Wait(&slow);
  turns.Wait(&fast);
  for (int i = 0; i < 40; ++i) turns.Run();
  EXPECT_EQ(slow.offered.size(), 10u);
  EXPECT_EQ(fast.offered.size(), 40u);
}

TEST(TimedFairTurnsTest, AJobAloneIsNotTimed) {
  FairTurns turns([]() -> int64_t {
    ADD_FAILURE() << "the clock costs a system call";
    return 0;
  });
  FakeLink link(3 * kQuantum);
  turns.Join(&link, kJobA);
  turns.Wait(&link);
  for (int i = 0; i < 3; ++i) turns.Run();
  EXPECT_EQ(link.served, 3 * kQuantum);
}

}  // namespace
}  // namespace addend
