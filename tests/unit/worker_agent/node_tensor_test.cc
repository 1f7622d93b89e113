// A tensor's memory, partitions and contribution.
#include "services/worker_agent/node_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace addend {
namespace {

std::shared_ptr<NodeTensor> Make(ReduceOp op, uint32_t local_ranks, int64_t elements = 100) {
  TensorShape shape{
      .name = "t", .dtype = DType::kFloat32, .op = op, .dims = {elements}, .participants = {}};
  auto tensor = *NodeTensor::Create(1, shape, std::vector<bool>(local_ranks, true));
  tensor->SetPlan(TensorId(1), 64, std::vector<PartitionOwner>((elements + 63) / 64));
  return tensor;
}

void Write(NodeTensor* tensor, uint32_t rank, float value) {
  float* values = reinterpret_cast<float*>(tensor->contributions[rank]->memory().data());
  std::fill(values, values + tensor->bytes / sizeof(float), value);
}

float First(Bytes bytes) {
  float value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

TEST(NodeTensorTest, SingleRanksDataIsSentFromItsSegment) {
  const auto tensor = Make(ReduceOp::kSum, 1);
  ASSERT_TRUE(tensor->rounds.OnPush(0, Round(1), false).ok());
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  EXPECT_FALSE(tensor->must_reduce);
  EXPECT_EQ(tensor->Contribution(0).data(), tensor->contributions[0]->memory().data());
  EXPECT_EQ(tensor->Contribution(0).size(), 256u);
  EXPECT_EQ(tensor->Contribution(1).size(), 144u) << "the last partition is the rest";
}

TEST(NodeTensorTest, DirectContributionIsReadFromTheGpuUntilItsCopyIsOnTheHost) {
  const auto tensor = Make(ReduceOp::kSum, 1);
  ASSERT_TRUE(tensor->rounds.OnPush(0, Round(1), false).ok());
  tensor->device.range = *DeviceRange::Reserve(UniqueFd(), tensor->bytes);
  tensor->device.direct = true;
  tensor->device.on_host = {false, true};
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  EXPECT_EQ(tensor->Contribution(0).data(), tensor->device.range->memory().data());
  EXPECT_EQ(tensor->Contribution(1).data(), tensor->contributions[0]->memory().data() + 256);
}

TEST(NodeTensorTest, SeveralRanksAreSummedPartitionByPartition) {
  const auto tensor = Make(ReduceOp::kAverage, 2);
  Write(tensor.get(), 0, 1.0f);
  Write(tensor.get(), 1, 2.0f);
  ASSERT_TRUE(tensor->rounds.OnPush(1, Round(1), false).ok());
  ASSERT_TRUE(tensor->rounds.OnPush(0, Round(1), false).ok());
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  ASSERT_TRUE(tensor->must_reduce);
  tensor->ReduceInNodeOf(1);
  EXPECT_EQ(First(tensor->Contribution(1)), 3.0f) << "the servers divide, not the node";
  EXPECT_EQ(First(Bytes(tensor->contributions[0]->memory())), 1.0f)
      << "a contribution is never written";
}

TEST(NodeTensorTest, NodeWithoutDataHasAnEmptyContribution) {
  const auto tensor = Make(ReduceOp::kSum, 2);
  ASSERT_TRUE(tensor->rounds.OnPush(0, Round(1), true).ok());
  ASSERT_TRUE(tensor->rounds.OnPush(1, Round(1), true).ok());
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  EXPECT_TRUE(tensor->contribution_is_empty);
  EXPECT_TRUE(tensor->Contribution(0).empty());
}

TEST(NodeTensorTest, BroadcastWithTwoLocalRootsIsAMismatch) {
  const auto tensor = Make(ReduceOp::kBroadcast, 2);
  ASSERT_TRUE(tensor->rounds.OnPush(0, Round(1), false).ok());
  ASSERT_TRUE(tensor->rounds.OnPush(1, Round(1), false).ok());
  EXPECT_EQ(tensor->PrepareContribution().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(NodeTensorTest, ResultsAlternateBetweenTwoSlots) {
  const auto tensor = Make(ReduceOp::kSum, 1);
  EXPECT_NE(tensor->ResultSlot(Round(1)).data(), tensor->ResultSlot(Round(2)).data());
  EXPECT_EQ(tensor->ResultSlot(Round(1)).data(), tensor->ResultSlot(Round(3)).data());
}

TEST(NodeTensorTest, TensorWithoutElementsHasNoPartitionsAndNoBytes) {
  const auto tensor = Make(ReduceOp::kSum, 1, 0);
  EXPECT_EQ(tensor->bytes, 0u);
  EXPECT_EQ(tensor->partitions(), 0u);
}

TEST(NodeTensorTest, PlacesSpreadThePartitionsOfEveryLinkEvenly) {
  const auto tensor = Make(ReduceOp::kSum, 1, 64 * 6);
  // The links are not used, only told apart.
  auto* const some = reinterpret_cast<ServerLink*>(0x10);
  auto* const other = reinterpret_cast<ServerLink*>(0x20);
  for (const uint32_t i : {0, 1, 2, 3}) tensor->owners[i].link = some;
  for (const uint32_t i : {4, 5}) tensor->owners[i].link = other;
  const auto places = [&](const std::vector<uint64_t>& sixteenths) {
    std::vector<uint64_t> all;
    for (const uint64_t part : sixteenths) all.push_back(1 + tensor->bytes * part / 16);
    return all;
  };
  EXPECT_EQ(tensor->PlacesSideBySide(NodeId(0)), places({1, 5, 9, 13, 6, 14}));
  EXPECT_EQ(tensor->PlacesSideBySide(NodeId(1)), places({3, 7, 11, 15, 2, 10}))
      << "the other link is the first";
  EXPECT_EQ(tensor->PlacesSideBySide(NodeId(2)), tensor->PlacesSideBySide(NodeId(0)));
}

TEST(NodeTensorTest, GroupOfGpusIsASingleInputOfTheSum) {
  const auto tensor = Make(ReduceOp::kSum, 4);
  Write(tensor.get(), 0, 3.0f);  // of ranks 0 and 1
  Write(tensor.get(), 2, 5.0f);  // of ranks 2 and 3
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(tensor->rounds.OnPush(rank, Round(1), /*empty=*/rank == 0).ok());
    tensor->device.pushes[rank] = {.used = true, .lead = rank / 2 * 2, .staged = 0};
  }
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  ASSERT_TRUE(tensor->must_reduce);
  tensor->ReduceInNodeOf(0);
  EXPECT_EQ(First(tensor->Contribution(0)), 8.0f);
}

TEST(NodeTensorTest, SumOfASingleGroupIsSentFromItsSegment) {
  const auto tensor = Make(ReduceOp::kSum, 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(tensor->rounds.OnPush(rank, Round(1), false).ok());
    tensor->device.pushes[rank] = {.used = true, .lead = 0, .staged = tensor->bytes};
  }
  ASSERT_TRUE(tensor->PrepareContribution().ok());
  EXPECT_FALSE(tensor->must_reduce);
  EXPECT_EQ(tensor->Contribution(0).data(), tensor->contributions[0]->memory().data());
}

TEST(NodeTensorTest, StagedBytesAreThoseOfTheSlowestRank) {
  const auto tensor = Make(ReduceOp::kSum, 3);
  EXPECT_EQ(tensor->StagedBytes(), tensor->bytes);
  tensor->device.pushes[0] = {.used = true, .lead = 0, .staged = 40};
  tensor->device.pushes[2] = {.used = true, .lead = 2, .staged = 12};
  EXPECT_EQ(tensor->StagedBytes(), 12u);
}

}  // namespace
}  // namespace addend
