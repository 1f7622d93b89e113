// The record of rounds and of their partitions' times.
#include "services/worker_agent/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMs = 1'000'000;

class JournalTest : public ::testing::Test {
 protected:
  std::shared_ptr<NodeTensor> Planned(uint32_t id, const std::string& name,
                                      ReduceOp op = ReduceOp::kSum) {
    auto tensor = generation_.Declare(Floats(name, 1000, op));
    generation_.Apply(FakeGeneration::PlanOf(id, name, 1000, {2}));
    return tensor;
  }
  // The last rank pushes at `time`, and the round starts.
  void Start(const std::shared_ptr<NodeTensor>& tensor, int64_t time) {
    tensor->NotePush(0, time - 2 * kMs, time);
    journal_.RoundStarts(*tensor);
  }
  std::vector<uint64_t> RoundsInTrace() const {
    std::vector<uint64_t> tensors;
    journal_.lives().NewestFirst([&](const PartitionLife& life) {
      tensors.push_back(life.partition.tensor().value());
      return true;
    });
    return tensors;
  }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  Journal journal_;
};

TEST_F(JournalTest, OverlappingTensorsShareARound) {
  journal_.SetOptimum(1e-6);  // 4 ms for a tensor of 4,000 bytes
  const auto first = Planned(1, "first");
  const auto second = Planned(2, "second");
  Start(first, 100 * kMs);
  Start(second, 101 * kMs);
  journal_.RoundEnds(first.get(), 108 * kMs);
  EXPECT_EQ(journal_.times().seconds.count(), 0u);
  journal_.RoundEnds(second.get(), 110 * kMs);
  EXPECT_EQ(journal_.times().seconds.count(), 1u);
  EXPECT_EQ(journal_.times().seconds.sum_ns(), 10 * kMs);
  EXPECT_DOUBLE_EQ(journal_.times().last_optimal_s, 8e-3);
}

TEST_F(JournalTest, BroadcastsShortRoundsAndFailedRoundsDoNotCount) {
  const auto tensor = Planned(1, "short");
  journal_.SetOptimum(1e-9);
  Start(tensor, 100 * kMs);
  journal_.RoundEnds(tensor.get(), 108 * kMs);
  journal_.SetOptimum(1e-6);
  const auto broadcast = Planned(2, "broadcast", ReduceOp::kBroadcast);
  Start(broadcast, 200 * kMs);
  journal_.RoundEnds(broadcast.get(), 208 * kMs);
  const auto failed = Planned(3, "failed");
  Start(failed, 300 * kMs);
  Start(tensor, 301 * kMs);
  journal_.RoundFails();
  journal_.RoundEnds(tensor.get(), 308 * kMs);
  EXPECT_EQ(journal_.times().seconds.count(), 0u);
  EXPECT_EQ(journal_.partitions(), 3u);
}

TEST_F(JournalTest, PartitionsTimesAreInOrder) {
  const auto tensor = Planned(1, "t");
  Start(tensor, 100 * kMs);
  // With payloads passed by reference the end of sending is known after the result.
  tensor->times[0] = {.ready = 101 * kMs,
                      .first_out = 102 * kMs,
                      .last_out = 120 * kMs,
                      .first_in = 105 * kMs,
                      .last_in = 106 * kMs};
  journal_.RoundEnds(tensor.get(), 107 * kMs);
  journal_.lives().NewestFirst([&](const PartitionLife& life) {
    EXPECT_EQ(life.times.last_out, 105 * kMs);
    EXPECT_EQ(life.delivered, 107 * kMs);
    EXPECT_EQ(life.pushes.first_call, 98 * kMs);
    EXPECT_EQ(life.server, ServerId(2));
    return true;
  });
  EXPECT_EQ(journal_.part(Part::kQueue).sum_ns(), 1 * kMs);
  EXPECT_EQ(journal_.bytes_in(), 4000u);
  EXPECT_EQ(tensor->times[0].ready, 0) << "reset for the next round";
}

TEST_F(JournalTest, PartsOfAPartitionsTimeFollowEachOther) {
  const auto tensor = Planned(1, "t");
  Start(tensor, 100 * kMs);  // the first call came at 98 ms
  tensor->times[0] = {.ready = 101 * kMs,
                      .first_out = 103 * kMs,
                      .last_out = 107 * kMs,
                      .first_in = 115 * kMs,
                      .last_in = 131 * kMs};
  journal_.RoundEnds(tensor.get(), 140 * kMs);
  std::vector<int64_t> parts;
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    parts.push_back(static_cast<int64_t>(journal_.part(static_cast<Part>(i)).sum_ns()) / kMs);
  }
  EXPECT_THAT(parts, ElementsAre(3, 2, 4, 8, 16));
}

TEST_F(JournalTest, UnknownTimesAreThoseOfTheNextKnownTime) {
  const auto tensor = Planned(1, "t");
  Start(tensor, 100 * kMs);
  tensor->times[0].ready = 101 * kMs;  // nothing was sent: the node's contribution was empty
  tensor->contribution_is_empty = true;
  journal_.RoundEnds(tensor.get(), 110 * kMs);
  journal_.lives().NewestFirst([&](const PartitionLife& life) {
    EXPECT_EQ(life.times.first_out, 101 * kMs);
    EXPECT_EQ(life.times.last_out, 101 * kMs);
    EXPECT_EQ(life.times.first_in, 110 * kMs);
    EXPECT_EQ(life.times.last_in, 110 * kMs);
    return true;
  });
  EXPECT_EQ(journal_.bytes_out(), 0u);
  EXPECT_EQ(journal_.bytes_in(), 4000u);
}

TEST_F(JournalTest, RoundsOfAtLeastAMillisecondAddUpAndTheLastTwentyAreKept) {
  const auto tensor = Planned(1, "t");
  journal_.SetOptimum(1e-3 / 4000);
  for (int round = 1; round <= 21; ++round) {
    Start(tensor, 100 * kMs);
    journal_.RoundEnds(tensor.get(), (100 + round) * kMs);
  }
  EXPECT_EQ(journal_.times().seconds.count(), 21u);
  EXPECT_DOUBLE_EQ(journal_.times().optimal_s, 21e-3);
  ASSERT_EQ(journal_.times().recent.size(), 20u);
  EXPECT_DOUBLE_EQ(journal_.times().recent.front().first, 2e-3);
  EXPECT_DOUBLE_EQ(journal_.times().recent.back().first, 21e-3);
  EXPECT_DOUBLE_EQ(journal_.times().recent.back().second, 1e-3);
  EXPECT_EQ(journal_.bytes_out(), 21 * 4000u);
}

TEST_F(JournalTest, RoundThatTheFormerGenerationLeftOpenIsForgotten) {
  journal_.SetOptimum(1e-6);
  Start(Planned(1, "first"), 100 * kMs);
  journal_.BeginGeneration();
  const auto second = Planned(2, "second");
  Start(second, 200 * kMs);
  journal_.RoundEnds(second.get(), 208 * kMs);
  EXPECT_EQ(journal_.times().seconds.sum_ns(), 8 * kMs);
}

TEST_F(JournalTest, RoundAfterAFailureCountsAgain) {
  journal_.SetOptimum(1e-6);
  const auto tensor = Planned(1, "t");
  Start(tensor, 100 * kMs);
  journal_.RoundFails();
  Start(tensor, 200 * kMs);
  journal_.RoundEnds(tensor.get(), 208 * kMs);
  EXPECT_EQ(journal_.times().seconds.sum_ns(), 8 * kMs);
}

TEST_F(JournalTest, TraceIsOfTheLastGenerationWithRounds) {
  const auto first = Planned(1, "first");
  Start(first, 100 * kMs);
  journal_.RoundEnds(first.get(), 108 * kMs);
  journal_.BeginGeneration();
  EXPECT_THAT(RoundsInTrace(), ElementsAre(1));
  const auto second = Planned(2, "second");
  Start(second, 200 * kMs);
  journal_.RoundEnds(second.get(), 208 * kMs);
  EXPECT_THAT(RoundsInTrace(), ElementsAre(2));
  EXPECT_EQ(journal_.names().size(), 1u);
}

}  // namespace
}  // namespace addend
