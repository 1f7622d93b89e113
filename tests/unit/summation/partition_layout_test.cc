// The memory of partitions: their sizes, and where each lies.
#include "lib/summation/partition_layout.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TensorSpec Tensor(DType dtype) {
  TensorSpec tensor;
  tensor.id = TensorId(3);
  tensor.dtype = dtype;
  tensor.elements = 150;
  tensor.partition_elements = 100;
  tensor.partitions = {0, 1};
  tensor.versions = {PlanVersion(), PlanVersion(4)};
  tensor.handed_over = {false, true};
  return tensor;
}

TEST(PartitionLayoutTest, OwnMemoryHasTwoAlignedAccumulators) {
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat32), 0, /*nodes=*/8, false), 2 * 448u)
      << "100 elements of 4 bytes";
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat32), 1, /*nodes=*/8, false), 2 * 256u)
      << "the last has 50";
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat16), 0, /*nodes=*/8, false), 2 * 448u)
      << "summed as float";
}

TEST(PartitionLayoutTest, ResultSlotsOfTheAgentLeaveOnlyTheAccumulatorOfHalfTypes) {
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat32), 0, /*nodes=*/8, true), 0u);
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat16), 0, /*nodes=*/8, true), 448u);
}

TEST(PartitionLayoutTest, SumsOfFullWidthHappenInTheResultSlots) {
  std::byte slots[2][600];
  std::byte own[448];
  const ExternalSlots external{{slots[0], slots[1]}, nullptr, nullptr};
  const PartitionMemory full = Layout(Tensor(DType::kFloat32), 1, /*nodes=*/8, own, external);
  EXPECT_EQ(full.result[1], slots[1] + 400);
  EXPECT_EQ(full.accumulator[1], full.result[1]);
  const PartitionMemory half = Layout(Tensor(DType::kFloat16), 1, /*nodes=*/8, own, external);
  EXPECT_EQ(half.result[0], slots[0] + 200);
  EXPECT_EQ(half.accumulator[0], own);
}

TEST(PartitionLayoutTest, OwnAccumulatorsFollowEachOther) {
  std::byte own[896];
  const PartitionMemory memory = Layout(Tensor(DType::kFloat32), 0, /*nodes=*/8, own, std::nullopt);
  EXPECT_EQ(memory.accumulator[0], own);
  EXPECT_EQ(memory.accumulator[1], own + 448);
  EXPECT_EQ(memory.result[1], memory.accumulator[1]);
}

TEST(PartitionLayoutTest, SumsOfGroupsHaveMemoryBehindTheAccumulators) {
  const TensorSpec tensor = Tensor(DType::kFloat16);
  EXPECT_EQ(OwnBytes(tensor, 0, /*nodes=*/9, false), 3 * 448u);
  EXPECT_EQ(OwnBytes(tensor, 0, /*nodes=*/64, true), 2 * 448u);
  EXPECT_EQ(OwnBytes(tensor, 0, /*nodes=*/65, true), 3 * 448u);
  EXPECT_EQ(OwnBytes(Tensor(DType::kFloat32), 0, /*nodes=*/65, true), 2 * 448u);
  std::byte slots[2][600];
  std::byte own[5 * 448];
  const ExternalSlots external{{slots[0], slots[1]}, nullptr, nullptr};
  EXPECT_EQ(Layout(tensor, 0, /*nodes=*/8, own, std::nullopt).partial, nullptr);
  EXPECT_EQ(Layout(tensor, 0, /*nodes=*/9, own, std::nullopt).partial, own + 2 * 448);
  EXPECT_EQ(Layout(tensor, 0, /*nodes=*/9, own, external).partial, own + 448);
  EXPECT_EQ(Layout(Tensor(DType::kFloat32), 0, /*nodes=*/9, own, external).partial, own);
}

TEST(PartitionLayoutTest, SpecificationFollowsTheJobAndTheReservation) {
  JobSpec job;
  job.num_nodes = 3;
  job.local_size = 2;
  job.lost = {NodeId(1)};
  job.failed = true;
  const PartitionSpec spec = SpecOf(job, Tensor(DType::kFloat32), "t", 1);
  EXPECT_EQ(spec.id, PartitionId(TensorId(3), 1));
  EXPECT_EQ(spec.elements, 50u);
  EXPECT_EQ(spec.nodes, 3u);
  EXPECT_EQ(spec.ranks, 2u);
  EXPECT_EQ(spec.lost, std::set<NodeId>{NodeId(1)});
  EXPECT_TRUE(spec.aborted);
  EXPECT_EQ(spec.version, PlanVersion(4));
  EXPECT_TRUE(spec.handed_over);
}

TEST(PartitionLayoutTest, ArenaLivesAsLongAsTheLastPartition) {
  std::shared_ptr<Arena> arena = *Arena::Create(8192);
  const MutableBytes memory = arena->memory();
  const std::weak_ptr<Arena> alive = arena;
  auto first = KeepAlive(arena, memory.first(4096), std::nullopt);
  auto second = KeepAlive(std::move(arena), memory.subspan(4096), std::nullopt);
  first.reset();
  EXPECT_FALSE(alive.expired());
  second.reset();
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace addend
