// Copies of contributions on a GPU.
#include "services/worker_agent/host_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPartition = 4096;

class HostCopiesTest : public ::testing::Test {
 protected:
  HostCopiesTest() {
    tensor_->SetPlan(TensorId(1), kPartition / sizeof(float), std::vector<PartitionOwner>(3));
    BeginRound();
  }

  // The rank has pushed, and its GPU holds the contribution.
  void BeginRound() {
    ASSERT_TRUE(tensor_->rounds.OnPush(0, tensor_->rounds.round(), false).ok());
    tensor_->rounds.Start(3);
    tensor_->device.direct = true;
    tensor_->device.on_host.assign(3, false);
  }
  void Bring(uint32_t partition, const std::string& what) {
    copies_.Bring(tensor_, partition,
                  [this, what](bool there) { done_.push_back(what + (there ? "" : " without")); });
  }
  absl::Status Fetched(uint32_t partition, uint64_t round = 1) {
    return copies_.OnFetched(tensor_.get(), Round(round), partition * kPartition,
                             tensor_->BytesOf(partition));
  }

  const std::shared_ptr<NodeTensor> tensor_ =
      *NodeTensor::Create(7,
                          {.name = "t",
                           .dtype = DType::kFloat32,
                           .op = ReduceOp::kSum,
                           .dims = {static_cast<int64_t>(2 * kPartition / sizeof(float) + 10)},
                           .participants = {}},
                          {true});
  std::vector<uint32_t> asked_;
  std::vector<std::string> done_;
  bool trainer_is_there_ = true;
  HostCopies copies_{[this](const NodeTensor&, uint32_t partition) {
    if (trainer_is_there_) asked_.push_back(partition);
    return trainer_is_there_;
  }};
};

TEST_F(HostCopiesTest, PartitionOnTheHostIsNotRequested) {
  tensor_->device.direct = false;
  Bring(1, "sent");
  EXPECT_THAT(done_, ElementsAre("sent"));
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(HostCopiesTest, SingleRequestServesAllReaders) {
  Bring(1, "sent");
  Bring(1, "audited");
  EXPECT_THAT(asked_, ElementsAre(1));
  EXPECT_THAT(done_, IsEmpty());
  ASSERT_TRUE(Fetched(1).ok());
  EXPECT_THAT(done_, ElementsAre("sent", "audited"));
  EXPECT_TRUE(tensor_->IsOnHost(1));
  EXPECT_FALSE(tensor_->IsOnHost(0));
  Bring(1, "at once");
  EXPECT_THAT(done_, ElementsAre("sent", "audited", "at once"));
  EXPECT_THAT(asked_, ElementsAre(1));
}

TEST_F(HostCopiesTest, AwaitedPartitionsAreKnown) {
  EXPECT_FALSE(copies_.AwaitsAnyOf(*tensor_));
  Bring(2, "sent");
  EXPECT_TRUE(copies_.Awaits(*tensor_, 2));
  EXPECT_FALSE(copies_.Awaits(*tensor_, 1));
  EXPECT_TRUE(copies_.AwaitsAnyOf(*tensor_));
  ASSERT_TRUE(Fetched(2).ok());
  EXPECT_FALSE(copies_.AwaitsAnyOf(*tensor_));
}

TEST_F(HostCopiesTest, ReadersLearnThatTheTrainerIsGone) {
  Bring(2, "sent");
  copies_.GiveUp();
  EXPECT_THAT(done_, ElementsAre("sent without"));
  trainer_is_there_ = false;
  Bring(1, "found");
  EXPECT_THAT(done_, ElementsAre("sent without", "found without"));
  EXPECT_FALSE(copies_.AwaitsAnyOf(*tensor_));
}

TEST_F(HostCopiesTest, CopyWithoutARequestIsRefused) {
  EXPECT_EQ(Fetched(0).code(), absl::StatusCode::kInvalidArgument);
  Bring(0, "sent");
  EXPECT_EQ(Fetched(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Fetched(0, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copies_.OnFetched(tensor_.get(), Round(1), 1, kPartition).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copies_.OnFetched(tensor_.get(), Round(1), UINT64_MAX, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(done_, IsEmpty());
}

TEST_F(HostCopiesTest, ForgottenTensorAwaitsNoCopy) {
  Bring(0, "sent");
  copies_.Forget(*tensor_);
  EXPECT_FALSE(Fetched(0).ok());
  EXPECT_THAT(done_, IsEmpty());
}

}  // namespace
}  // namespace addend
