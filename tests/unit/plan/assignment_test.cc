#include "lib/plan/assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "lib/base/limits.h"
#include "lib/base/strings.h"
#include "lib/plan/models.h"
#include "lib/plan/shares.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<ServerLoad> Servers(const std::vector<double>& shares, size_t shards = 1) {
  std::vector<ServerLoad> servers;
  for (const double share : shares) {
    ServerLoad s;
    s.share = share;
    s.shard_loads.assign(shards, 0);
    servers.push_back(s);
  }
  return servers;
}

std::vector<ServerLoad> ServersOfPlan(size_t n, size_t k, size_t shards = 1) {
  const Plan plan = MakePlan(HomogeneousInput(n, k, 1e9, 1e10)).value();
  std::vector<double> shares = plan.gpu_shares;
  shares.insert(shares.end(), plan.cpu_shares.begin(), plan.cpu_shares.end());
  return Servers(shares, shards);
}

std::vector<TensorSize> Model(std::string_view name) {
  const std::vector<ModelTensor> parameters = ModelTensors(name).value();
  std::vector<TensorSize> tensors;
  for (const ModelTensor& t : parameters) tensors.push_back({t.elements, DType::kFloat32});
  return tensors;
}

// Checks that every byte is assigned once, that the loads are right, and that no server is more
// than a partition above its share.
void ExpectBalanced(const std::vector<TensorSize>& tensors,
                    const std::vector<TensorAssignment>& assignments,
                    const std::vector<ServerLoad>& servers) {
  ASSERT_EQ(tensors.size(), assignments.size());
  std::vector<uint64_t> loads(servers.size(), 0);
  std::vector<std::vector<uint64_t>> shards;
  for (const ServerLoad& s : servers) shards.emplace_back(s.shard_loads.size(), 0);
  uint64_t total = 0, largest = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorAssignment& a = assignments[t];
    const uint64_t size = SizeOf(tensors[t].dtype);
    uint64_t covered = 0;
    ASSERT_EQ(a.servers.size(), a.shards.size());
    for (size_t i = 0; i < a.servers.size(); ++i) {
      const uint64_t elements = ElementsOfPartition(tensors[t].elements, a.partition_elements, i);
      ASSERT_GT(elements, 0u);
      covered += elements;
      loads.at(a.servers[i]) += elements * size;
      shards.at(a.servers[i]).at(a.shards[i]) += elements * size;
      largest = std::max(largest, elements * size);
    }
    ASSERT_EQ(covered, tensors[t].elements);
    total += covered * size;
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    EXPECT_EQ(servers[i].load_bytes, loads[i]);
    EXPECT_EQ(servers[i].shard_loads, shards[i]);
    EXPECT_LE(static_cast<double>(loads[i]),
              servers[i].share * static_cast<double>(total) + static_cast<double>(largest) + 1)
        << "server " << i;
  }
}

TEST(AssignmentTest, PartitionsAreCutAtMultiplesOf64Elements) {
  EXPECT_EQ(PartitionElements(DType::kFloat32, 128 * 1024), 32768u);
  EXPECT_EQ(PartitionElements(DType::kFloat32, 1000), 192u);
  EXPECT_EQ(PartitionElements(DType::kFloat64, 100), 12u);
  EXPECT_EQ(PartitionElements(DType::kFloat64, 1), 1u);
  EXPECT_EQ(PartitionElements(DType::kFloat16, 128), 64u);
  EXPECT_EQ(PartitionCount(0, 64), 0u);
  EXPECT_EQ(PartitionCount(64, 64), 1u);
  EXPECT_EQ(PartitionCount(65, 64), 2u);
  EXPECT_EQ(ElementsOfPartition(65, 64, 0), 64u);
  EXPECT_EQ(ElementsOfPartition(65, 64, 1), 1u);
  EXPECT_EQ(AccumulatorBytes(DType::kFloat16, 10, 2), 80u);
  EXPECT_EQ(AccumulatorBytes(DType::kInt64, 10, 2), 160u);
}

TEST(AssignmentTest, PartitionsForEveryServerTakeAFewMillisecondsOfASlowLink) {
  const auto least = [](double bps, size_t servers) {
    return PartitionSize::Auto(bps, servers).least();
  };
  EXPECT_EQ(least(0, 6), 128u << 10) << "unknown";
  EXPECT_EQ(least(25e9, 12), 128u << 10);
  EXPECT_EQ(least(400e6, 6), 32u << 10);
  EXPECT_EQ(least(400e6, 16), 16u << 10);
  EXPECT_EQ(least(100e9, 1536), 64u << 10);
  EXPECT_EQ(least(25e9, 1536), 16u << 10);
  EXPECT_EQ(least(1e6, 6), 16u << 10) << "none is smaller";
}

TEST(AssignmentTest, LargeTensorsHaveLargerPartitionsOnFastLinks) {
  const PartitionSize unknown = PartitionSize::Auto(0, 4);
  EXPECT_EQ(unknown.ForTensor(0), 128u << 10);
  EXPECT_EQ(unknown.ForTensor(4 << 20), 128u << 10);
  EXPECT_EQ(unknown.ForTensor(32'000'000), 256u << 10);
  EXPECT_EQ(unknown.ForTensor(64'000'000), 512u << 10);
  EXPECT_EQ(unknown.ForTensor(uint64_t{1} << 40), 512u << 10) << "none is larger";
  EXPECT_EQ(PartitionSize::Auto(0, 8).ForTensor(64'000'000), 256u << 10) << "24 for each server";
  EXPECT_EQ(PartitionSize::Auto(10e9, 4).ForTensor(64 << 20), 256u << 10) << "1 ms";
  EXPECT_EQ(PartitionSize::Auto(10e9, 16).ForTensor(64 << 20), 128u << 10);
  EXPECT_EQ(PartitionSize::Auto(400e6, 6).ForTensor(64 << 20), 32u << 10);
  EXPECT_EQ(PartitionSize(1000).ForTensor(64 << 20), 1000u) << "as given";
  EXPECT_EQ(PartitionSize::Auto(0, 1).ForTensor(8 << 20), 256u << 10) << "24 for one server";
  EXPECT_EQ(PartitionSize::Auto(0, 0).ForTensor(8 << 20), 256u << 10) << "before any is there";
}

TEST(AssignmentTest, RealModelsExceedNoShareByMoreThanOnePartition) {
  for (const std::string_view model : ModelNames()) {
    const std::vector<TensorSize> tensors = Model(model);
    for (const size_t k : {0, 2, 4, 8}) {
      for (const uint64_t partition_bytes : {32768, 131072, 4194304, 1000003}) {
        SCOPED_TRACE(testing::Message()
                     << model << ", k = " << k << ", partitions of " << partition_bytes);
        std::vector<ServerLoad> servers = ServersOfPlan(8, k, 3);
        const auto assignments = Assign(tensors, partition_bytes, &servers);
        ASSERT_TRUE(assignments.ok()) << Message(assignments.status());
        ExpectBalanced(tensors, *assignments, servers);
        if (k == 8) {
          for (size_t i = 0; i < 8; ++i)
            EXPECT_EQ(servers[i].load_bytes, 0u) << "a GPU machine's share is 0";
        }
      }
    }
  }
}

TEST(AssignmentTest, DeclaringOneByOneKeepsTheBound) {
  for (const std::string_view model : ModelNames()) {
    SCOPED_TRACE(model);
    const std::vector<TensorSize> tensors = Model(model);
    std::vector<ServerLoad> servers = ServersOfPlan(8, 4, 2);
    std::vector<TensorAssignment> all;
    for (size_t i = tensors.size(); i-- > 0;) {  // as a backward pass declares them
      auto assignment = Assign({&tensors[i], 1}, 131072, &servers);
      ASSERT_TRUE(assignment.ok());
      all.insert(all.begin(), assignment->front());
      if (i % 16 == 0) ExpectBalanced({tensors.begin() + i, tensors.end()}, all, servers);
    }
  }
}

TEST(AssignmentTest, RandomTensorsAndSharesKeepTheBound) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> shares;
    for (size_t i = 0; i < 1 + random() % 9; ++i) shares.push_back(1 + random() % 100);
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& s : shares) s /= sum;
    std::vector<ServerLoad> servers = Servers(shares, 1 + random() % 4);
    std::vector<TensorSize> tensors;
    std::vector<TensorAssignment> all;
    for (int batch = 0; batch < 5; ++batch) {
      std::vector<TensorSize> some;
      for (size_t i = 0; i < random() % 8; ++i) {
        some.push_back(
            {random() % (random() % 3 ? 100 : 1000000), static_cast<DType>(random() % kDTypes)});
      }
      auto assignments = Assign(some, 40000, &servers);
      ASSERT_TRUE(assignments.ok());
      tensors.insert(tensors.end(), some.begin(), some.end());
      all.insert(all.end(), assignments->begin(), assignments->end());
      ExpectBalanced(tensors, all, servers);
    }
  }
}

TEST(AssignmentTest, TheSameInputGivesTheSameMap) {
  const std::vector<TensorSize> tensors = Model("resnet50");
  std::vector<ServerLoad> first = ServersOfPlan(8, 4, 3), second = first;
  const auto a = Assign(tensors, 131072, &first).value();
  const auto b = Assign(tensors, 131072, &second).value();
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(a[i].servers, b[i].servers);
    EXPECT_EQ(a[i].shards, b[i].shards);
  }
}

// A change of the map between versions of this code would make a rolling upgrade disagree with
// itself.
TEST(AssignmentTest, TheMapOfASmallCaseIsKnown) {
  std::vector<ServerLoad> servers = Servers({0.5, 0.25, 0.25}, 2);
  const std::vector<TensorSize> tensors = {
      {64 * 8, DType::kFloat32}, {0, DType::kFloat32}, {10, DType::kFloat64}};
  const auto a = Assign(tensors, 256, &servers).value();
  EXPECT_THAT(a[0].servers, ElementsAre(0, 1, 2, 0, 0, 1, 2, 0));
  EXPECT_THAT(a[0].shards, ElementsAre(0, 0, 0, 1, 0, 1, 1, 1));
  EXPECT_THAT(a[1].servers, ElementsAre());
  EXPECT_THAT(a[2].servers, ElementsAre(0));
}

TEST(AssignmentTest, OwnersAreSpreadEvenlyAlongTheTensor) {
  std::vector<ServerLoad> servers = ServersOfPlan(8, 4);
  const TensorSize tensor = {64 * 10000, DType::kFloat32};
  const TensorAssignment a = Assign({&tensor, 1}, 256, &servers).value()[0];
  for (uint32_t server = 0; server < servers.size(); ++server) {
    const double count =
        static_cast<double>(std::count(a.servers.begin(), a.servers.end(), server));
    double seen = 0;
    for (size_t i = 0; i < a.servers.size(); ++i) {
      seen += a.servers[i] == server;
      const double expected =
          count * static_cast<double>(i + 1) / static_cast<double>(a.servers.size());
      ASSERT_NEAR(seen, expected, 2) << "server " << server << " at partition " << i;
    }
  }
}

TEST(AssignmentTest, ShardsOfAServerAreFilledEvenly) {
  std::vector<ServerLoad> servers = ServersOfPlan(4, 2, 3);
  ASSERT_TRUE(Assign(Model("gpt2"), 131072, &servers).ok());
  for (const ServerLoad& s : servers) {
    const auto [least, most] = std::minmax_element(s.shard_loads.begin(), s.shard_loads.end());
    EXPECT_LE(*most - *least, 131072u);
  }
}

TEST(AssignmentTest, ReleaseIsTheOppositeOfChargeAndAssign) {
  const std::vector<TensorSize> tensors = {{100003, DType::kFloat16}, {77, DType::kInt64}};
  std::vector<ServerLoad> servers = ServersOfPlan(3, 2, 2);
  for (ServerLoad& s : servers) s.free_bytes = 10'000'000;
  std::vector<ServerLoad> charged = servers;
  const auto assignments = Assign(tensors, 4096, &servers).value();
  for (size_t i = 0; i < tensors.size(); ++i) Charge(tensors[i], assignments[i], &charged);
  for (size_t i = 0; i < servers.size(); ++i) {
    EXPECT_EQ(charged[i].load_bytes, servers[i].load_bytes);
    EXPECT_EQ(charged[i].shard_loads, servers[i].shard_loads);
    EXPECT_EQ(charged[i].free_bytes, servers[i].free_bytes);
  }
  for (size_t i = 0; i < tensors.size(); ++i) Release(tensors[i], assignments[i], &servers);
  for (const ServerLoad& s : servers) {
    EXPECT_EQ(s.load_bytes, 0u);
    EXPECT_THAT(s.shard_loads, ElementsAre(0, 0));
    EXPECT_EQ(s.free_bytes, 10'000'000u);
  }
}

TEST(AssignmentTest, AFullServerIsPassedOver) {
  std::vector<ServerLoad> servers = Servers({0.5, 0.5});
  servers[0].free_bytes =
      AccumulatorBytes(DType::kFloat32, 64, 2) * 3 + 8;  // three partitions and one element
  const TensorSize tensor = {64 * 20 + 1, DType::kFloat32};
  const TensorAssignment a = Assign({&tensor, 1}, 256, &servers).value()[0];
  EXPECT_EQ(std::count(a.servers.begin(), a.servers.end(), 0u), 4);
  EXPECT_EQ(a.servers.back(), 0u) << "the smaller last partition still fits";
  EXPECT_EQ(servers[0].free_bytes, 0u);
}

TEST(AssignmentTest, WhenNoServerHasRoomTheErrorHasTheNumbersAndNothingChanges) {
  std::vector<ServerLoad> servers = Servers({0.5, 0.5});
  servers[0].free_bytes = 1000;
  servers[1].free_bytes = 600;
  const TensorSize tensor = {64 * 20, DType::kFloat32};
  const absl::Status status = Assign({&tensor, 1}, 256, &servers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("needs 512 bytes"));
  EXPECT_THAT(Message(status), HasSubstr("at most 488 bytes free"));
  EXPECT_EQ(servers[0].free_bytes, 1000u);
  EXPECT_EQ(servers[0].load_bytes, 0u);
}

TEST(AssignmentTest, BadInputIsRefused) {
  const TensorSize tensor = {1, DType::kFloat32}, huge = {uint64_t{1} << 60, DType::kFloat32};
  std::vector<ServerLoad> none, servers = Servers({1}), negative = Servers({-1}),
                                shardless = Servers({1}, 0);
  EXPECT_EQ(Assign({&tensor, 1}, 256, &none).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Assign({&tensor, 1}, 0, &servers).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Assign({&huge, 1}, 256, &servers).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Assign({&tensor, 1}, 256, &negative).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Assign({&tensor, 1}, 256, &shardless).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AssignmentTest, TheLargestTensorIsAssignedAndALargerOneIsRefused) {
  constexpr uint64_t kOnePartition = 4 * (kMaxElements + 64);
  std::vector<ServerLoad> servers = Servers({1});
  TensorSize tensor = {kMaxElements, DType::kFloat32};
  const auto most = Assign({&tensor, 1}, kOnePartition, &servers);
  ASSERT_TRUE(most.ok()) << Message(most.status());
  EXPECT_THAT(most->front().servers, ElementsAre(0));
  EXPECT_EQ(servers[0].load_bytes, 4 * kMaxElements);
  ++tensor.elements;
  EXPECT_EQ(Assign({&tensor, 1}, kOnePartition, &servers).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AssignmentTest, AMillionPartitionsOverTwoThousandServers) {
  std::vector<ServerLoad> servers = ServersOfPlan(1024, 1024, 4);
  std::vector<TensorSize> tensors(1000, TensorSize{64 * 1000, DType::kFloat32});
  const auto assignments = Assign(tensors, 256, &servers).value();
  ExpectBalanced(tensors, assignments, servers);
}

}  // namespace
}  // namespace addend
