// Early contributions of rounds of many nodes: the bits of the tree, in whatever order they come,
// and the memory that they take.
#include "lib/summation/kept_contributions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/sum_tree.h"
#include "lib/summation/open_round.h"
#include "tests/unit/summation/tree_reference.h"

namespace addend {
namespace {

constexpr uint64_t kElements = 64;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr size_t kBuffer = 4096;  // the least that a buffer takes

Bytes BytesOf(const Values& values) { return std::as_bytes(std::span(values)); }

// A round whose contributions come in a given order.
class ManyNodes {
 public:
  ManyNodes(uint32_t nodes, uint64_t budget, std::shared_ptr<const Participants> participants = {})
      : budget_(budget), spec_{.name = "t", .elements = kElements, .nodes = nodes} {
    spec_.participants = std::move(participants);
    room_.resize((1 + SumLevels(nodes)) * kBytes);
    for (int i = 0; i < 2; ++i)
      memory_.accumulator[i] = memory_.result[i] = room_.data() + i * kBytes;
    memory_.partial = room_.data() + 2 * kBytes;
    round_.emplace(&spec_, &memory_);
  }

  OpenRound& round() { return *round_; }
  // The node's contribution; nullopt: it adds nothing.
  void Come(NodeId node, const std::optional<Values>& values) {
    const bool empty = !values.has_value();
    const Payload payload = empty ? Payload() : Payload(BytesOf(*values));
    if (round_->collector().turn() == node) {
      ASSERT_TRUE(round_->Take(Payload(payload.bytes()), Encoding::kRaw, empty).ok());
      return Advance();
    }
    FrameHeader header;
    header.sender = node.value();
    header.flags = empty ? kFlagEmpty : 0;
    std::unique_ptr<EarlyContribution> early;
    if (!empty) early = EarlyContribution::TakeBuffer(buffers_.get(), kBytes, job_);
    if (early != nullptr) std::memcpy(early->room().data(), values->data(), kBytes);
    round_->KeepOrDrop(header, Payload(payload.bytes()), std::move(early), buffers_.get(), job_);
    most_ = std::max(most_, budget_.used());
  }
  void Lose(NodeId node) {
    round_->Lose(node);
    Advance();
  }
  // To be sent again.
  std::optional<NodeId> Asked() { return std::exchange(asked_, std::nullopt); }
  bool sealed() const { return sealed_; }
  Values Result() const {
    Values values(kElements);
    std::memcpy(values.data(), memory_.result[1], kBytes);
    return values;
  }
  uint64_t most_taken() const { return most_; }

 private:
  void Advance() {
    for (;;) {
      const Collector::Next next = round_->Advance();
      if (next == Collector::Next::kKept) {
        ASSERT_TRUE(round_->TakeKept().ok());
        continue;
      }
      if (next == Collector::Next::kAsk) asked_ = round_->collector().turn();
      break;
    }
    sealed_ = round_->Settle().has_value() || sealed_;
  }

  MemoryBudget budget_;
  std::shared_ptr<EarlyBuffers> buffers_ = EarlyBuffers::Create(&budget_);
  std::shared_ptr<JobMemory> job_ = std::make_shared<JobMemory>(&budget_, 0);
  PartitionSpec spec_;
  std::vector<std::byte> room_;
  PartitionMemory memory_;
  std::optional<OpenRound> round_;
  std::optional<NodeId> asked_;
  bool sealed_ = false;
  uint64_t most_ = 0;
};

class KeptContributionsTest : public ::testing::Test {
 protected:
  std::deque<NodeId> AnyOrder(uint32_t nodes) {
    std::deque<NodeId> order;
    for (uint32_t node = 0; node < nodes; ++node) order.emplace_back(node);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  std::mt19937 random_{20261128};
};

TEST_F(KeptContributionsTest, AnyOrderOfArrivalGivesTheTreesSum) {
  for (const uint32_t nodes : {9, 17, 64, 65, 100}) {
    for (const uint64_t budget : {uint64_t{1}, uint64_t{10 * kBuffer}, uint64_t{1} << 30}) {
      const auto all = DrawAll(nodes, kElements, 0.125, &random_);
      ManyNodes many(nodes, budget);
      std::deque<NodeId> coming = AnyOrder(nodes);
      for (; !coming.empty(); coming.pop_front()) {
        many.Come(coming.front(), all[coming.front().value()]);
        if (random_() % 10 == 0) many.round().DropKept();
        if (const auto again = many.Asked()) coming.push_back(*again);
      }
      ASSERT_TRUE(many.sealed()) << nodes << " nodes, " << budget << " bytes";
      EXPECT_EQ(many.Result(), *TreeOf(all)) << nodes << " nodes, " << budget << " bytes";
    }
  }
}

TEST_F(KeptContributionsTest, LostNodesLeaveTheOthersWhereTheyAre) {
  for (int attempt = 0; attempt < 30; ++attempt) {
    constexpr uint32_t kNodes = 40;
    auto all = DrawAll(kNodes, kElements, 0.125, &random_);
    ManyNodes many(kNodes, 1 << 30);
    const std::deque<NodeId> coming = AnyOrder(kNodes);
    const size_t before = random_() % kNodes;
    std::set<NodeId> lost;
    while (lost.size() < 5) lost.emplace(random_() % kNodes);
    for (size_t i = 0; i < coming.size(); ++i) {
      if (i == before) {
        for (const NodeId node : lost) many.Lose(node);
      }
      // A contribution that was there before its node was lost counts.
      const bool counts = !lost.contains(coming[i]) || i < before;
      if (counts) many.Come(coming[i], all[coming[i].value()]);
      if (!counts) all[coming[i].value()].reset();
    }
    ASSERT_TRUE(many.sealed());
    EXPECT_EQ(many.Result(), *TreeOf(all));
  }
}

TEST_F(KeptContributionsTest, PositionsAreThoseAmongTheParticipants) {
  constexpr uint32_t kNodes = 60;
  std::vector<uint32_t> ranks;
  for (uint32_t node = 0; node < kNodes; node += 1 + random_() % 3) ranks.push_back(node);
  const auto participants = std::make_shared<Participants>(*Participants::Of(ranks, kNodes));
  ManyNodes many(kNodes, 1 << 30, participants);
  const auto all = DrawAll(kNodes, kElements, 0.125, &random_);
  std::vector<std::optional<Values>> theirs;
  for (const uint32_t node : ranks) theirs.push_back(all[node]);
  std::shuffle(ranks.begin(), ranks.end(), random_);
  for (const uint32_t node : ranks) many.Come(NodeId(node), all[node]);
  ASSERT_TRUE(many.sealed());
  EXPECT_EQ(many.Result(), *TreeOf(theirs));
}

// The worst order: the first node comes last.
TEST_F(KeptContributionsTest, GroupsTakeABufferEach) {
  for (const uint32_t nodes : {8, 64, 512}) {
    ManyNodes many(nodes, uint64_t{1} << 30);
    for (uint32_t node = 1; node < nodes; ++node)
      many.Come(NodeId(node), Draw(kElements, &random_));
    EXPECT_LE(many.most_taken(), (nodes / kSumRadix + 15) * kBuffer)
        << "sums, 7 of the first group, and 8 of a group that is being summed";
    many.Come(NodeId(0), Draw(kElements, &random_));
    EXPECT_TRUE(many.sealed());
  }
}

TEST_F(KeptContributionsTest, SumOfAGroupIsDroppedAsAWholeUnlessALostNodeIsInIt) {
  constexpr uint32_t kNodes = 24;
  ManyNodes many(kNodes, 1 << 30);
  for (uint32_t node = 8; node < kNodes; ++node) many.Come(NodeId(node), Draw(kElements, &random_));
  many.Lose(NodeId(20));
  EXPECT_EQ(many.round().DropKept(), 8u) << "of nodes 8 to 15";
  const Collector& collector = many.round().collector();
  EXPECT_EQ(collector.Classify(NodeId(9), Round(1)), Collector::Standing::kEarly);
  EXPECT_EQ(collector.Classify(NodeId(17), Round(1)), Collector::Standing::kRepeated);
}

}  // namespace
}  // namespace addend
