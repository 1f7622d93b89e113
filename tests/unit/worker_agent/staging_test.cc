// The order of staging, and the partitions that wait for it.
#include "services/worker_agent/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace addend {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMiB = 1 << 20;

std::shared_ptr<NodeTensor> Make(uint32_t number, int32_t priority, uint64_t bytes,
                                 uint32_t ranks = 1) {
  TensorShape shape{.name = "t",
                    .dtype = DType::kFloat32,
                    .op = ReduceOp::kSum,
                    .dims = {static_cast<int64_t>(bytes / sizeof(float))},
                    .participants = {}};
  auto tensor = *NodeTensor::Create(number, shape, std::vector<bool>(ranks, true));
  tensor->priority = priority;
  tensor->SetPlan(TensorId(number), kMiB / sizeof(float),
                  std::vector<PartitionOwner>((bytes + kMiB - 1) / kMiB));
  return tensor;
}

class StagingOrderTest : public ::testing::Test {
 protected:
  std::vector<uint32_t> started_;
  StagingOrder order_{[this](const std::shared_ptr<NodeTensor>& tensor, uint32_t) {
    started_.push_back(tensor->number);
  }};
};

TEST_F(StagingOrderTest, UrgentTensorOvertakesWaitingTensors) {
  const auto large = Make(1, 0, 32 * kMiB);
  order_.Announce(large, 0);
  order_.Announce(Make(2, 0, kMiB), 0);
  order_.Announce(Make(3, 5, kMiB), 0);
  EXPECT_THAT(started_, ElementsAre(1)) << "the others wait until it is there";
  order_.Done(*large, 0);
  EXPECT_THAT(started_, ElementsAre(1, 3, 2));
}

TEST_F(StagingOrderTest, SeveralSmallTensorsAreUnderWayAtATime) {
  for (uint32_t number = 1; number <= 40; ++number) order_.Announce(Make(number, 0, kMiB), 0);
  EXPECT_EQ(started_.size(), 16u);
}

TEST_F(StagingOrderTest, GroupsDoNotWaitForEachOther) {
  order_.Announce(Make(1, 0, 32 * kMiB), 0);
  order_.Announce(Make(2, 0, 32 * kMiB), 4);
  EXPECT_THAT(started_, ElementsAre(1, 2));
}

TEST_F(StagingOrderTest, ForgottenTensorHoldsUpNoOther) {
  const auto large = Make(1, 0, 32 * kMiB);
  order_.Announce(large, 0);
  order_.Announce(Make(2, 0, kMiB), 0);
  order_.Forget(*large);
  order_.Done(*large, 0);  // which comes too late
  EXPECT_THAT(started_, ElementsAre(1, 2));
}

class StagingQueueTest : public ::testing::Test {
 protected:
  // The partitions that need not wait.
  std::vector<uint32_t> Begin(const std::shared_ptr<NodeTensor>& tensor) {
    std::vector<uint32_t> passed;
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      if (!queue_.Hold({.tensor = tensor, .partition = partition, .round = Round(1)})) {
        passed.push_back(partition);
      }
    }
    return passed;
  }
  std::vector<uint32_t> Stage(NodeTensor* tensor, uint32_t rank, uint64_t bytes) {
    tensor->device.pushes[rank].staged = bytes;
    std::vector<uint32_t> passed;
    for (const PartitionPush& push : queue_.Advance(*tensor)) passed.push_back(push.partition);
    return passed;
  }

  StagingQueue queue_;
};

TEST_F(StagingQueueTest, PartitionsInHostMemoryDoNotWait) {
  EXPECT_THAT(Begin(Make(1, 0, 3 * kMiB)), ElementsAre(0, 1, 2));
}

TEST_F(StagingQueueTest, PartitionWaitsUntilAllRanksHaveStagedIt) {
  const auto tensor = Make(1, 0, 3 * kMiB, 2);
  tensor->device.pushes[0].used = tensor->device.pushes[1].used = true;
  tensor->device.pushes[1].staged = 3 * kMiB;
  EXPECT_THAT(Begin(tensor), ElementsAre());
  EXPECT_THAT(Stage(tensor.get(), 0, 2 * kMiB - 1), ElementsAre(0));
  EXPECT_THAT(Stage(tensor.get(), 0, 3 * kMiB), ElementsAre(1, 2));
  EXPECT_THAT(Stage(tensor.get(), 0, 3 * kMiB), ElementsAre());
}

TEST_F(StagingQueueTest, RankThatPushesFromHostMemoryIsNotWaitedFor) {
  const auto tensor = Make(1, 0, kMiB, 2);
  tensor->device.pushes[1].used = true;
  EXPECT_THAT(Begin(tensor), ElementsAre());
  EXPECT_THAT(Stage(tensor.get(), 1, kMiB), ElementsAre(0));
}

TEST_F(StagingQueueTest, ClearedQueueReturnsNoPartition) {
  const auto tensor = Make(1, 0, kMiB);
  tensor->device.pushes[0].used = true;
  EXPECT_THAT(Begin(tensor), ElementsAre());
  queue_.Clear();
  EXPECT_THAT(Stage(tensor.get(), 0, kMiB), ElementsAre());
}

}  // namespace
}  // namespace addend
