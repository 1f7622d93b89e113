#include "services/worker_agent/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace addend {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMiB = 1 << 20;

std::shared_ptr<Tensor> Make(uint32_t number, int32_t priority, uint64_t bytes,
                             uint32_t ranks = 1) {
  TensorShape shape{.name = "t",
                    .dtype = DType::kFloat32,
                    .op = ReduceOp::kSum,
                    .dims = {static_cast<int64_t>(bytes / sizeof(float))}};
  auto tensor = *Tensor::Create(number, shape, ranks);
  tensor->priority = priority;
  tensor->partition_elements = kMiB / sizeof(float);
  tensor->owners.resize((bytes + kMiB - 1) / kMiB);
  return tensor;
}

class StagingOrderTest : public ::testing::Test {
 protected:
  std::vector<uint32_t> started_;
  StagingOrder order_{[this](const std::shared_ptr<Tensor>& tensor, uint32_t) {
    started_.push_back(tensor->number);
  }};
};

TEST_F(StagingOrderTest, WhatIsUrgentOvertakesWhatWaits) {
  const auto large = Make(1, 0, 32 * kMiB);
  order_.Announce(large, 0);
  order_.Announce(Make(2, 0, kMiB), 0);
  order_.Announce(Make(3, 5, kMiB), 0);
  EXPECT_THAT(started_, ElementsAre(1)) << "the others wait until it is there";
  order_.Done(*large, 0);
  EXPECT_THAT(started_, ElementsAre(1, 3, 2));
}

TEST_F(StagingOrderTest, SeveralSmallOnesAreUnderWayAtATime) {
  for (uint32_t number = 1; number <= 40; ++number) order_.Announce(Make(number, 0, kMiB), 0);
  EXPECT_EQ(started_.size(), 16u);
}

TEST_F(StagingOrderTest, GroupsDoNotWaitForEachOther) {
  order_.Announce(Make(1, 0, 32 * kMiB), 0);
  order_.Announce(Make(2, 0, 32 * kMiB), 4);
  EXPECT_THAT(started_, ElementsAre(1, 2));
}

TEST_F(StagingOrderTest, OneThatIsForgottenHoldsUpNobody) {
  const auto large = Make(1, 0, 32 * kMiB);
  order_.Announce(large, 0);
  order_.Announce(Make(2, 0, kMiB), 0);
  order_.Forget(*large);
  order_.Done(*large, 0);  // which comes too late
  EXPECT_THAT(started_, ElementsAre(1, 2));
}

class Collector final : public Stage {
 public:
  explicit Collector(std::vector<uint32_t>* partitions) : partitions_(partitions) {}
  void Enter(Pipeline*, Task task) override { partitions_->push_back(task.partition); }

 private:
  std::vector<uint32_t>* const partitions_;
};

class StagingStageTest : public ::testing::Test {
 protected:
  StagingStageTest() : pipeline_(MakeStages()) {}
  std::vector<std::unique_ptr<Stage>> MakeStages() {
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(std::make_unique<StagingStage>());
    staging_ = static_cast<StagingStage*>(stages.back().get());
    stages.push_back(std::make_unique<Collector>(&passed_));
    return stages;
  }
  void Begin(const std::shared_ptr<Tensor>& tensor) {
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      Task task;
      task.tensor = tensor;
      task.partition = partition;
      pipeline_.Begin(std::move(task));
    }
  }

  StagingStage* staging_ = nullptr;
  std::vector<uint32_t> passed_;
  Pipeline pipeline_;
};

TEST_F(StagingStageTest, WhatIsInHostMemoryPassesAtOnce) {
  Begin(Make(1, 0, 3 * kMiB));
  EXPECT_THAT(passed_, ElementsAre(0, 1, 2));
}

TEST_F(StagingStageTest, APartitionPassesWhenAllRanksHaveDoneTheirPartOfIt) {
  const auto tensor = Make(1, 0, 3 * kMiB, 2);
  tensor->device[0].used = tensor->device[1].used = true;
  tensor->device[1].staged = 3 * kMiB;
  Begin(tensor);
  EXPECT_THAT(passed_, ElementsAre());
  tensor->device[0].staged = 2 * kMiB - 1;
  staging_->Advance(*tensor);
  EXPECT_THAT(passed_, ElementsAre(0));
  tensor->device[0].staged = 3 * kMiB;
  staging_->Advance(*tensor);
  EXPECT_THAT(passed_, ElementsAre(0, 1, 2));
}

TEST_F(StagingStageTest, OneRankMayPushFromHostMemory) {
  const auto tensor = Make(1, 0, kMiB, 2);
  tensor->device[1].used = true;
  Begin(tensor);
  EXPECT_THAT(passed_, ElementsAre());
  tensor->device[1].staged = kMiB;
  staging_->Advance(*tensor);
  EXPECT_THAT(passed_, ElementsAre(0));
}

}  // namespace
}  // namespace addend
