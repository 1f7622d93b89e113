#include "lib/plan/rebalance.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace addend {
namespace {

constexpr uint64_t kBytes = 100;

// `counts[i]` partitions of equal size at server i. With more counts than shares, the last of
// `counts` is at a server that is being emptied.
struct Cluster {
  Cluster(std::vector<int> counts, std::vector<double> shares) : servers(shares.size()) {
    for (size_t i = 0; i < shares.size(); ++i) servers[i].share = shares[i];
    for (size_t i = 0; i < counts.size(); ++i) {
      for (int j = 0; j < counts[i]; ++j) {
        OwnedPartition partition{kBytes, 2 * kBytes, std::nullopt};
        if (i < shares.size()) {
          partition.server = static_cast<uint32_t>(i);
          servers[i].load_bytes += kBytes;
          servers[i].shard_loads[0] += kBytes;
        }
        partitions.push_back(partition);
      }
    }
  }
  std::vector<Move> Run() { return Rebalance(partitions, servers); }
  std::vector<int> After(const std::vector<Move>& moves) const {
    std::vector<int> counts(servers.size() + 1, 0);
    std::vector<OwnedPartition> now = partitions;
    for (const Move& move : moves) now[move.partition].server = move.server;
    for (const auto& partition : now) ++counts[partition.server.value_or(servers.size())];
    return counts;
  }
  std::vector<OwnedPartition> partitions;
  std::vector<ServerLoad> servers;
};

TEST(RebalanceTest, NothingMovesWhenAllHaveTheirShare) {
  EXPECT_TRUE(Cluster({10, 10}, {0.5, 0.5}).Run().empty());
  EXPECT_TRUE(Cluster({11, 10}, {0.5, 0.5}).Run().empty()) << "half a partition cannot be levelled";
}

TEST(RebalanceTest, AServerThatJoinsGetsItsShareFromAllAndNothingElseMoves) {
  Cluster cluster({30, 30, 0}, {1, 1, 1});
  const auto moves = cluster.Run();
  EXPECT_EQ(moves.size(), 20u);
  EXPECT_EQ(cluster.After(moves), (std::vector<int>{20, 20, 20, 0}));
  for (const Move& move : moves) EXPECT_EQ(move.server, 2u);
}

TEST(RebalanceTest, MovesAreSpreadAlongTheTensors) {
  Cluster cluster({40, 0}, {0.75, 0.25});
  auto moves = cluster.Run();
  ASSERT_EQ(moves.size(), 10u);
  std::sort(moves.begin(), moves.end(),
            [](const Move& a, const Move& b) { return a.partition < b.partition; });
  for (size_t i = 1; i < moves.size(); ++i) {
    EXPECT_EQ(moves[i].partition - moves[i - 1].partition, 4u);
  }
}

TEST(RebalanceTest, AServerThatIsToBeEmptiedLosesAllAndOthersKeepTheirs) {
  Cluster cluster({10, 10, 20}, {1, 1});
  const auto moves = cluster.Run();
  EXPECT_EQ(moves.size(), 20u);
  EXPECT_EQ(cluster.After(moves), (std::vector<int>{20, 20, 0}));
}

TEST(RebalanceTest, TheBytesOfAnEmptiedServerBelongToTheSharesOfTheOthers) {
  Cluster cluster({10, 10, 20}, {3, 1});
  const auto moves = cluster.Run();
  EXPECT_EQ(moves.size(), 20u) << "the second server has its quarter of 40 already";
  EXPECT_EQ(cluster.After(moves), (std::vector<int>{30, 10, 0}));
}

TEST(RebalanceTest, TheLargestPartitionMovesFirstAndEqualPartitionsInTheOrderOfTheTensors) {
  Cluster cluster({0, 6}, {1});
  cluster.partitions[2].bytes = 3 * kBytes;
  cluster.partitions[4].bytes = 2 * kBytes;
  std::vector<size_t> order;
  for (const Move& move : cluster.Run()) order.push_back(move.partition);
  EXPECT_EQ(order, (std::vector<size_t>{2, 4, 0, 1, 3, 5}));
}

TEST(RebalanceTest, SharesThatHaveChangedAreFollowed) {
  Cluster cluster({20, 20, 20}, {0.5, 0.25, 0.25});
  EXPECT_EQ(cluster.After(cluster.Run()), (std::vector<int>{30, 15, 15, 0}));
}

TEST(RebalanceTest, WithoutFreeMemoryPartitionsStay) {
  Cluster cluster({4, 0, 3}, {1, 1});
  cluster.servers[0].free_bytes = 0;
  cluster.servers[1].free_bytes = 2 * 2 * kBytes;  // two partitions
  EXPECT_EQ(cluster.After(cluster.Run()), (std::vector<int>{4, 2, 1}))
      << "those that must go come first";
}

TEST(RebalanceTest, ShardsAreLevelledToo) {
  Cluster cluster({8, 0}, {1, 1});
  cluster.servers[1].shard_loads = {0, 0};
  std::vector<int> shards(2, 0);
  for (const Move& move : cluster.Run()) ++shards[move.shard];
  EXPECT_EQ(shards, (std::vector<int>{2, 2}));
}

}  // namespace
}  // namespace addend
