// Ranks that push from GPUs: groups, staging, and copies.
#include "services/worker_agent/device_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeviceSourceTest : public ::testing::Test {
 protected:
  DeviceSourceTest() {
    generation_.rounds.Use(&source_);
    tensor_ = generation_.Declare(Floats("t", 4));
    generation_.Apply(FakeGeneration::PlanOf(6, "t", 2, {2, 2}));
    link_ = node_.tcp.Open();
  }
  // Without a topology every rank is a group of its own.
  void JoinAll() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(devices_.OnDevice(trainer(rank), {absl::StrFormat("gpu%d", rank)}).ok());
    }
  }
  absl::Status PushFromDevice(uint32_t rank) {
    return generation_.rounds.OnPush(
        tensor_, &trainer(rank),
        {.tensor = tensor_->number, .round = tensor_->rounds.round().value(), .on_device = true});
  }
  absl::Status Staged(uint32_t rank, uint64_t bytes) {
    return source_.OnStaged(
        trainer(rank),
        {.tensor = tensor_->number, .round = tensor_->rounds.round().value(), .bytes = bytes});
  }
  FakeTrainer& trainer(uint32_t rank) { return *generation_.trainers[rank]; }

  FakeNode node_;
  FakeGeneration generation_{&node_};
  DeviceRanks devices_{generation_.context, &generation_.ranks, &generation_.tensors,
                       &generation_.state};
  DeviceSource source_{generation_.context, &generation_.ranks, &generation_.tensors,
                       &generation_.state,  &devices_,          &generation_.host_source,
                       &generation_.rounds};
  std::shared_ptr<NodeTensor> tensor_;
  FakeLink* link_ = nullptr;
};

TEST_F(DeviceSourceTest, RanksHearTheirGroupsWhenAllHaveNamedTheirGpus) {
  ASSERT_TRUE(devices_.OnDevice(trainer(0), {"gpu0"}).ok());
  EXPECT_THAT(trainer(0).types(), IsEmpty());
  ASSERT_TRUE(devices_.OnDevice(trainer(1), {"gpu1"}).ok());
  EXPECT_THAT(trainer(0).types(), ElementsAre(ipc::Type::kGroup));
  EXPECT_THAT(trainer(1).types(), ElementsAre(ipc::Type::kGroup));
  EXPECT_EQ(trainer(1).Last<ipc::GroupMessage>().members, 1u);
  EXPECT_FALSE(devices_.OnDevice(trainer(1), {"gpu1"}).ok()) << "named twice";
}

TEST_F(DeviceSourceTest, RankThatNamesNoGpuStallsTheOthers) {
  ASSERT_TRUE(devices_.OnDevice(trainer(0), {"gpu0"}).ok());
  devices_.CheckMissing();
  EXPECT_THAT(trainer(0).types(), IsEmpty());
  node_.loop.Pass(absl::Seconds(5));
  devices_.CheckMissing();
  EXPECT_THAT(trainer(0).Last<ipc::ProgressMessage>().text,
              HasSubstr("waiting for rank 3 of this node to push its"));
  EXPECT_THAT(trainer(1).types(), IsEmpty());
  node_.loop.Pass(absl::Seconds(300));
  devices_.CheckMissing();
  ASSERT_EQ(node_.reports.said.back(), "beat");
  node_.reports.said.pop_back();
  EXPECT_THAT(node_.reports.said.back(),
              HasSubstr("failed stalled: rank 3 has not pushed anything from a GPU"));
}

TEST_F(DeviceSourceTest, AttachedRankGetsItsGroupsSegment) {
  EXPECT_FALSE(devices_.OnAttach(&trainer(1), {tensor_->number}).ok()) << "no group so far";
  JoinAll();
  ASSERT_TRUE(devices_.OnAttach(&trainer(1), {tensor_->number}).ok());
  EXPECT_EQ(trainer(1).Last<ipc::AttachedMessage>().tensor, tensor_->number);
  EXPECT_EQ(trainer(1).sent.back().segments, 1u);
}

TEST_F(DeviceSourceTest, OnlyTheFirstOfAGroupMakesItsId) {
  EXPECT_FALSE(devices_.OnGroupId(trainer(0), {std::string(128, 'x')}).ok());
  JoinAll();
  EXPECT_TRUE(devices_.OnGroupId(trainer(0), {std::string(128, 'x')}).ok());
  EXPECT_FALSE(devices_.OnGroupId(trainer(0), {"short"}).ok());
}

TEST_F(DeviceSourceTest, LostGpuFailsTheGeneration) {
  ASSERT_TRUE(devices_.OnDeviceFailed(trainer(1), {"it fell off the bus"}).ok());
  EXPECT_THAT(generation_.state.why().message(),
              HasSubstr("rank 3 (local rank 1 of node 1 on host) lost its GPU: it fell"));
}

TEST_F(DeviceSourceTest, PartitionsAreSentWhenAllRanksHaveStagedThem) {
  JoinAll();
  ASSERT_TRUE(PushFromDevice(0).ok());
  EXPECT_EQ(trainer(0).Last<ipc::ContributeMessage>().with_data, 1u);
  EXPECT_FALSE(trainer(0).Last<ipc::ContributeMessage>().direct) << "no NIC reads the GPU";
  ASSERT_TRUE(PushFromDevice(1).ok());
  node_.loop.Settle();
  EXPECT_THAT(link_->frames, IsEmpty());
  EXPECT_THAT(source_.WhyOpen(*tensor_), HasSubstr("rank 2, 3 of this node has pushed it, and its "
                                                   "GPU has not finished it"));
  ASSERT_TRUE(Staged(0, 16).ok());
  ASSERT_TRUE(Staged(1, 8).ok());
  node_.loop.Settle();
  EXPECT_THAT(link_->types(), ElementsAre(FrameType::kContribution));
  ASSERT_TRUE(Staged(1, 16).ok());
  node_.loop.Settle();
  EXPECT_EQ(link_->frames.size(), 2u);
  EXPECT_EQ(source_.WhyOpen(*tensor_), "");
}

TEST_F(DeviceSourceTest, StagedBytesOnlyGrow) {
  JoinAll();
  ASSERT_TRUE(PushFromDevice(0).ok());
  ASSERT_TRUE(Staged(0, 8).ok());
  EXPECT_FALSE(Staged(0, 8).ok());
  EXPECT_FALSE(Staged(0, 17).ok()) << "more than the tensor has";
  EXPECT_FALSE(Staged(1, 8).ok()) << "it has not pushed";
}

TEST_F(DeviceSourceTest, RanksOfGpusHearOfEachPartitionsResult) {
  JoinAll();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(PushFromDevice(rank).ok());
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Staged(rank, 16).ok());
  node_.loop.Settle();
  ASSERT_TRUE(
      link_->Deliver(generation_.FrameOf(FrameType::kResult, *tensor_, 1), FloatBytes({1, 2}))
          .ok());
  EXPECT_EQ(trainer(0).Last<ipc::ArrivedMessage>().range.offset, 8u);
}

TEST_F(DeviceSourceTest, CopyOfADirectContributionIsReadOnTheHost) {
  JoinAll();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(PushFromDevice(rank).ok());
  tensor_->device.direct = true;
  tensor_->device.on_host = {true, false};
  EXPECT_TRUE(source_.Reads({.tensor = tensor_, .partition = 0, .round = Round(1)}));
  EXPECT_TRUE(source_.MayEnd(*tensor_, 0, /*on_host=*/true));
  EXPECT_TRUE(source_.MayEnd(*tensor_, 1, /*on_host=*/false)) << "no copy was requested";
  EXPECT_FALSE(source_.MayEnd(*tensor_, 1, /*on_host=*/true));
}

TEST_F(DeviceSourceTest, ContributionOnAGpuThatNoNicReadsIsNotReadYet) {
  JoinAll();
  tensor_->device.range = *DeviceRange::Reserve(UniqueFd(), tensor_->bytes);
  tensor_->device.direct = true;
  tensor_->device.on_host = {false, true};
  EXPECT_FALSE(source_.Reads({.tensor = tensor_, .partition = 0, .round = Round(1)}));
  EXPECT_TRUE(source_.Reads({.tensor = tensor_, .partition = 1, .round = Round(1)}));
  EXPECT_EQ(node_.counters.direct_bytes, 0u);
}

TEST_F(DeviceSourceTest, OfferedMemoryIsNotReadIfNoServerIsReachedOverRdma) {
  JoinAll();
  tensor_->device.range = *DeviceRange::Reserve(UniqueFd(), tensor_->bytes);
  ASSERT_TRUE(PushFromDevice(0).ok());
  EXPECT_FALSE(trainer(0).Last<ipc::ContributeMessage>().direct);
}

TEST_F(DeviceSourceTest, OnlyTheDirectRankOffersMemoryAndCopies) {
  JoinAll();
  const ipc::DirectMessage offer{.tensor = tensor_->number, .bytes = tensor_->bytes};
  EXPECT_FALSE(source_.OnDirect(trainer(0), offer, UniqueFd()).ok());
  EXPECT_FALSE(source_.OnFetched(trainer(0), {{.tensor = tensor_->number}}).ok());
  EXPECT_TRUE(source_.OnFetched(trainer(0), {{.tensor = 99}}).ok()) << "the tensor may have ended";
}

TEST_F(DeviceSourceTest, RanksOfAGroupMustPushFromTheSamePlace) {
  JoinAll();
  EXPECT_TRUE(generation_.Push(tensor_, 0, {1, 2, 3, 4}).ok());
  EXPECT_TRUE(PushFromDevice(1).ok());
  EXPECT_TRUE(generation_.state.running()) << "each rank is a group of its own";
  EXPECT_THAT(source_.RanksIn(*tensor_, 1), ElementsAre(1));
}

TEST_F(DeviceSourceTest, StoppedSourceSendsNothing) {
  JoinAll();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(PushFromDevice(rank).ok());
  source_.Stop();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Staged(rank, 16).ok());
  node_.loop.Settle();
  EXPECT_THAT(link_->frames, IsEmpty());
}

}  // namespace
}  // namespace addend
