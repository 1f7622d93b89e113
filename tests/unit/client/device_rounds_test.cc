// The rounds of GPU memory, with an executor that only records the calls: no socket, no thread, no
// GPU. The agent's answers are delivered before the call that would wait for them.
#include "lib/client/device_rounds.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/client/parts.h"

namespace addend::client {
namespace {

class DeviceRoundsTest : public testing::Test {
 protected:
  static std::shared_ptr<Tensor> MakeTensor(uint32_t number = 4, size_t bytes = 16) {
    auto tensor = std::make_shared<Tensor>();
    tensor->name = "t";
    tensor->number = number;
    tensor->dtype = DType::kFloat32;
    tensor->bytes = bytes;
    const size_t slot = ipc::SlotBytes(bytes);
    EXPECT_TRUE(Segment::Map(SegmentMemory(slot).get(), slot, Segment::Access::kReadWrite, "t",
                             &tensor->contribution)
                    .ok());
    EXPECT_TRUE(Segment::Map(SegmentMemory(2 * slot).get(), 2 * slot, Segment::Access::kReadOnly,
                             "t", &tensor->results)
                    .ok());
    return tensor;
  }
  // A round of the tensor, begun and started; null if Begin fails.
  std::shared_ptr<Operation> Push(const std::shared_ptr<Tensor>& tensor, uint64_t round = 1) {
    auto operation = std::make_shared<Operation>();
    operation->tensor = tensor;
    error_ = rounds_.Begin(tensor, {.dtype = DType::kFloat32}, /*id=*/70 + round, operation.get());
    if (!error_.ok()) return nullptr;
    operation->round = round;
    rounds_.Start(operation.get());
    return operation;
  }
  template <typename Typed>
  std::vector<Typed> Sent() const {
    return MessagesIn<Typed>(sent_);
  }

  std::vector<Packet> sent_;
  std::vector<std::string> failures_;
  RecordingExecutor::Record record_;
  Error error_;
  DeviceRounds rounds_{
      "/agent",
      [this](const ipc::Encoded& message, GuardedFd) { sent_.push_back(PacketOf(message)); },
      [this](const Error& error) { failures_.push_back(error.text); },
      RecordingExecutor::OpenTo(&record_)};
};

TEST_F(DeviceRoundsTest, FirstMemberMakesTheIdOfTheGroupAndJoins) {
  ASSERT_TRUE(rounds_.OnGroup({.member = 0, .members = 2, .scatter = true}).ok());
  ASSERT_NE(Push(MakeTensor()), nullptr) << error_.text;
  ASSERT_EQ(Sent<ipc::DeviceMessage>().size(), 1u);
  EXPECT_EQ(Sent<ipc::DeviceMessage>()[0].bus_id, "0000:3b:00.0");
  ASSERT_EQ(Sent<ipc::GroupIdMessage>().size(), 1u);
  EXPECT_EQ(Sent<ipc::GroupIdMessage>()[0].id, std::string(kDeviceIdBytes, 'i'));
  EXPECT_EQ(record_.Count("join"), 1u);
}

TEST_F(DeviceRoundsTest, GroupOfASingleMemberNeedsNoId) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  ASSERT_NE(Push(MakeTensor()), nullptr);
  EXPECT_EQ(record_.Count("join"), 0u);
  EXPECT_TRUE(Sent<ipc::GroupIdMessage>().empty());
}

TEST_F(DeviceRoundsTest, GpuIsOpenedOnceAndATensorIsMappedOnce) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  const auto tensor = MakeTensor();
  ASSERT_NE(Push(tensor, 1), nullptr);
  ASSERT_NE(Push(tensor, 2), nullptr);
  EXPECT_EQ(record_.Count("open"), 1u);
  EXPECT_EQ(record_.Count("map"), 2u) << "its contribution and its results";
}

TEST_F(DeviceRoundsTest, OtherMembersCopyToTheSegmentOfTheFirst) {
  ASSERT_TRUE(rounds_.OnGroup({.member = 1, .members = 2, .scatter = true}).ok());
  rounds_.OnGroupId({std::string(kDeviceIdBytes, 'x')});
  const auto tensor = MakeTensor();
  std::vector<GuardedFd> fds;
  EXPECT_EQ(rounds_.OnAttached(tensor.get(), fds).code, ADDEND_ERROR_RESOURCES);
  fds.push_back(SegmentMemory(ipc::SlotBytes(tensor->bytes)));
  ASSERT_TRUE(rounds_.OnAttached(tensor.get(), fds).ok());
  const auto operation = Push(tensor);
  ASSERT_NE(operation, nullptr);
  ASSERT_EQ(Sent<ipc::AttachMessage>().size(), 1u);
  EXPECT_EQ(Sent<ipc::AttachMessage>()[0].tensor, 4u);
  EXPECT_EQ(operation->on_device->contribution, tensor->group_contribution->data());
}

TEST_F(DeviceRoundsTest, GroupThatCannotBeIsRefused) {
  EXPECT_EQ(rounds_.OnGroup({.member = 2, .members = 2, .scatter = true}).code,
            ADDEND_ERROR_INTERNAL);
  EXPECT_EQ(rounds_.OnGroup({.member = 0, .members = 0, .scatter = true}).code,
            ADDEND_ERROR_INTERNAL);
  EXPECT_EQ(rounds_.OnGroup({.members = 2}).code, ADDEND_ERROR_INTERNAL) << "without roots";
  EXPECT_TRUE(rounds_.OnGroup({.members = 2, .roots = {1}}).ok());
}

TEST_F(DeviceRoundsTest, StagedBytesAreReportedWithTheTensorAndTheRoundUntilAllAreThere) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  const auto operation = Push(MakeTensor(), 9);
  record_.sink->Staged(79, 8);
  record_.sink->Staged(79, 16);
  record_.sink->Staged(79, 16);
  const auto staged = Sent<ipc::StagedMessage>();
  ASSERT_EQ(staged.size(), 2u);
  EXPECT_EQ(staged[1].tensor, 4u);
  EXPECT_EQ(staged[1].round, 9u);
  EXPECT_EQ(staged[1].bytes, 16u);
}

TEST_F(DeviceRoundsTest, LastPartOfAResultCompletesTheOperation) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  const auto operation = Push(MakeTensor());
  ASSERT_TRUE(rounds_.OnContribute(operation.get(), {.tensor = 4, .round = 1}).ok());
  EXPECT_EQ(record_.direct, nullptr);
  ASSERT_TRUE(rounds_.OnArrived(operation.get(), {{4, 1, 0, 16}}).ok());
  EXPECT_TRUE(operation->enqueued);
  EXPECT_EQ(rounds_.OnArrived(operation.get(), {{4, 1, 8, 16}}).code, ADDEND_ERROR_INTERNAL);
}

TEST_F(DeviceRoundsTest, TensorOfAGpuThatANicReadsIsOffered) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true, .direct = true}).ok());
  const auto tensor = MakeTensor(4, ipc::kDirectBytesMin);
  const auto operation = Push(tensor);
  ASSERT_EQ(Sent<ipc::DirectMessage>().size(), 1u);
  EXPECT_EQ(Sent<ipc::DirectMessage>()[0].bytes, ipc::kDirectBytesMin);
  ASSERT_TRUE(rounds_.OnContribute(operation.get(), {.direct = true}).ok());
  EXPECT_EQ(record_.direct, tensor->direct);
  ASSERT_TRUE(rounds_.OnFetch(operation.get(), {{4, 1, 0, 64}}).ok());
  record_.sink->Fetched(4, 1, 0, 64);
  ASSERT_EQ(Sent<ipc::FetchedMessage>().size(), 1u);
  EXPECT_EQ(Sent<ipc::FetchedMessage>()[0].range.bytes, 64u);
  rounds_.OnNotDirect();
  ASSERT_NE(Push(MakeTensor(5, ipc::kDirectBytesMin)), nullptr);
  EXPECT_EQ(Sent<ipc::DirectMessage>().size(), 1u);
}

TEST_F(DeviceRoundsTest, GpuThatCannotExportIsUsedThroughHostMemory) {
  record_.failing = "export";
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true, .direct = true}).ok());
  const auto operation = Push(MakeTensor(4, ipc::kDirectBytesMin));
  ASSERT_NE(operation, nullptr);
  EXPECT_TRUE(Sent<ipc::DirectMessage>().empty());
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(rounds_.OnFetch(operation.get(), {{4, 1, 0, 64}}).code, ADDEND_ERROR_INTERNAL);
}

TEST_F(DeviceRoundsTest, FailureOfTheGpuIsSentAndFailsTheJob) {
  record_.failing = "contribute";
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  const auto operation = Push(MakeTensor());
  EXPECT_EQ(rounds_.OnContribute(operation.get(), {}).code, ADDEND_ERROR_PEER_LOST);
  record_.sink->Failed("an error of CUDA");
  EXPECT_EQ(failures_, (std::vector<std::string>{"the GPU has failed", "an error of CUDA"}));
  ASSERT_EQ(Sent<ipc::DeviceFailedMessage>().size(), 2u);
  EXPECT_EQ(Sent<ipc::DeviceFailedMessage>()[1].reason, "an error of CUDA");
}

TEST_F(DeviceRoundsTest, NoRoundBeginsAfterTheEnd) {
  rounds_.End(MakeError(ADDEND_ERROR_STATE, "the end"));
  EXPECT_EQ(Push(MakeTensor()), nullptr);
  EXPECT_EQ(error_.text, "the end");
  EXPECT_EQ(record_.Count("open"), 0u);
}

TEST_F(DeviceRoundsTest, CallbacksAfterDetachHaveNoEffect) {
  ASSERT_TRUE(rounds_.OnGroup({.scatter = true}).ok());
  const auto operation = Push(MakeTensor());
  rounds_.Detach();
  const size_t sent = sent_.size();
  record_.sink->Staged(71, 8);
  record_.sink->Failed("late");
  EXPECT_EQ(sent_.size(), sent);
  EXPECT_TRUE(failures_.empty());
}

}  // namespace
}  // namespace addend::client
