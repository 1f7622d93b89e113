// Tensors and push-pulls by the calls of the reader's thread, and the errors that end them.
#include "lib/client/operations.h"

#include <gmock/gmock.h>

#include <latch>
#include <thread>

#include "tests/unit/client/parts.h"

namespace addend::client {
namespace {

using testing::Each;
using testing::HasSubstr;

class OperationsTest : public ClientPartsTest {
 protected:
  using ClientPartsTest::ClientPartsTest;

  std::shared_ptr<Tensor> DeclareTensor() {
    std::shared_ptr<Tensor> tensor;
    const auto answer = [&](uint64_t request) {
      const std::shared_ptr<Tensor> made = operations_.TakeDeclared(request);
      const std::vector<GuardedFd> fds = MakeSegments();
      const size_t slot = ipc::SlotBytes(made->bytes);
      EXPECT_TRUE(
          Segment::Map(fds[0].get(), slot, Segment::Access::kReadWrite, "t", &made->contribution)
              .ok());
      EXPECT_TRUE(
          Segment::Map(fds[1].get(), 2 * slot, Segment::Access::kReadOnly, "t", &made->results)
              .ok());
      operations_.EndDeclaration(made, kNumber, {});
    };
    const Error error = Declare("t", answer, &tensor);
    EXPECT_TRUE(error.ok()) << error.text;
    return tensor;
  }

  static std::vector<float> Contribution(const Tensor& tensor) {
    const auto* const data = reinterpret_cast<const float*>(tensor.contribution->data());
    return {data, data + kElements};
  }

  const Error lost_{ADDEND_ERROR_PEER_LOST, "the agent is gone"};
};

TEST_F(OperationsTest, AnAnswerIsTakenOnce) {
  std::shared_ptr<Tensor> tensor;
  const auto answer = [&](uint64_t request) {
    const auto made = operations_.TakeDeclared(request);
    EXPECT_EQ(operations_.TakeDeclared(request), nullptr);
    EXPECT_EQ(operations_.Find(kNumber), nullptr);
    operations_.EndDeclaration(made, kNumber, {});
    EXPECT_EQ(operations_.Find(kNumber), made);
  };
  ASSERT_TRUE(Declare("t", answer, &tensor).ok());
  EXPECT_EQ(tensor, operations_.Find(kNumber));
}

TEST_F(OperationsTest, RefusedNameIsFreeAgain) {
  std::shared_ptr<Tensor> tensor;
  const auto refuse = [&](uint64_t request) {
    operations_.EndDeclaration(operations_.TakeDeclared(request), kNumber,
                               {ADDEND_ERROR_MISMATCH, "another shape"});
  };
  EXPECT_EQ(Declare("t", refuse, &tensor).text, "another shape");
  EXPECT_EQ(operations_.Find(kNumber), nullptr);
  EXPECT_NE(DeclareTensor(), nullptr);
  EXPECT_EQ(Sent<ipc::DeclareMessage>().size(), 2u);
}

TEST_F(OperationsTest, UndeclaredTensorIsNotFound) {
  const auto tensor = DeclareTensor();
  ASSERT_TRUE(operations_.Undeclare(tensor).ok());
  EXPECT_EQ(operations_.Find(kNumber), nullptr);
  EXPECT_EQ(operations_.Undeclare(tensor).code, ADDEND_ERROR_STATE);
}

TEST_F(OperationsTest, ResultIsCopiedFromTheSlotOfItsRound) {
  const auto tensor = DeclareTensor();
  for (uint64_t round = 1; round <= 3; ++round) {
    const std::vector<float> in(kElements, static_cast<float>(round));
    std::vector<float> out(kElements);
    const auto operation = Push(tensor, in.data(), out.data());
    EXPECT_THAT(Contribution(*tensor), Each(static_cast<float>(round)));
    EXPECT_EQ(operations_.FindUnderWay(kNumber, round), operation);
    WriteResult(round, 10.0f * static_cast<float>(round));
    ASSERT_TRUE(operations_.EndRound(kNumber, round, {}).ok());
    EXPECT_TRUE(operations_.Wait(operation, 0).ok());
    EXPECT_THAT(out, Each(10.0f * static_cast<float>(round)));
  }
  EXPECT_EQ(operations_.statistics().rounds, 3u);
  EXPECT_EQ(operations_.statistics().copied_in_bytes, 3 * tensor->bytes);
  EXPECT_EQ(operations_.statistics().copied_out_bytes, 3 * tensor->bytes);
}

TEST_F(OperationsTest, NextPushStartsAtTheEndOfTheRoundBefore) {
  const auto tensor = DeclareTensor();
  const std::vector<float> first(kElements, 1);
  const std::vector<float> second(kElements, 2);
  Push(tensor, first.data(), nullptr);
  const auto next = Push(tensor, second.data(), nullptr);
  EXPECT_EQ(Sent<ipc::PushMessage>().size(), 1u);
  EXPECT_THAT(Contribution(*tensor), Each(1));
  ASSERT_TRUE(operations_.EndRound(kNumber, 1, {}).ok());
  ASSERT_EQ(Sent<ipc::PushMessage>().size(), 2u);
  EXPECT_EQ(Sent<ipc::PushMessage>()[1].round, 2u);
  EXPECT_THAT(Contribution(*tensor), Each(2));
  EXPECT_EQ(operations_.Wait(next, 0).code, ADDEND_ERROR_TIMEOUT);
}

TEST_F(OperationsTest, ReleasedPushThatWaitsKeepsItsContribution) {
  const auto tensor = DeclareTensor();
  std::vector<float> values(kElements, 1);
  Push(tensor, values.data(), nullptr);
  const auto waiting = Push(tensor, values.data(), values.data());
  operations_.Release(waiting);
  values.assign(kElements, -5);
  ASSERT_TRUE(operations_.EndRound(kNumber, 1, {}).ok());
  EXPECT_THAT(Contribution(*tensor), Each(1));
  WriteResult(2, 7);
  ASSERT_TRUE(operations_.EndRound(kNumber, 2, {}).ok());
  EXPECT_THAT(values, Each(-5));
}

TEST_F(OperationsTest, EndOfARoundThatIsNotUnderWayIsAnError) {
  const auto tensor = DeclareTensor();
  EXPECT_EQ(operations_.EndRound(kNumber, 0, {}).code, ADDEND_ERROR_INTERNAL);
  EXPECT_EQ(operations_.EndRound(kNumber, 1, {}).code, ADDEND_ERROR_INTERNAL);
  const auto operation = Push(tensor, nullptr, nullptr);
  EXPECT_EQ(operations_.EndRound(kNumber, 2, {}).code, ADDEND_ERROR_INTERNAL);
  EXPECT_EQ(operations_.EndRound(kNumber + 1, 1, {}).code, ADDEND_ERROR_INTERNAL);
  EXPECT_EQ(operations_.FindUnderWay(kNumber, 2), nullptr);
  EXPECT_EQ(operations_.Wait(operation, 0).code, ADDEND_ERROR_TIMEOUT);
}

TEST_F(OperationsTest, ErrorOfARoundLeavesTheNextAlone) {
  const auto tensor = DeclareTensor();
  std::vector<float> out(kElements, -1);
  const auto failed = Push(tensor, nullptr, out.data());
  const auto next = Push(tensor, nullptr, out.data());
  WriteResult(1, 5);
  ASSERT_TRUE(operations_.EndRound(kNumber, 1, {ADDEND_ERROR_RESOURCES, "no memory"}).ok());
  EXPECT_EQ(operations_.Wait(failed, 0).text, "no memory");
  EXPECT_THAT(out, Each(-1));
  ASSERT_TRUE(operations_.EndRound(kNumber, 2, {}).ok());
  EXPECT_TRUE(operations_.Wait(next, 0).ok());
}

TEST_F(OperationsTest, ResultOfAGpuRoundNeedsAllItsParts) {
  ASSERT_TRUE(device_rounds_.OnGroup({.scatter = true}).ok());
  const auto tensor = DeclareTensor();
  for (const bool complete : {false, true}) {
    auto operation = std::make_shared<Operation>();
    operation->tensor = tensor;
    ASSERT_TRUE(device_rounds_.Begin(tensor, {.dtype = DType::kFloat32}, 70, operation.get()).ok());
    ASSERT_TRUE(operations_.Enqueue(operation).ok());
    EXPECT_TRUE(Sent<ipc::PushMessage>().back().on_device);
    operation->enqueued = complete;
    ASSERT_TRUE(operations_.EndRound(kNumber, operation->round, {}).ok());
    EXPECT_EQ(operations_.Wait(operation, 0).code, complete ? ADDEND_OK : ADDEND_ERROR_INTERNAL);
  }
}

TEST_F(OperationsTest, TagsComeInTheOrderOfTheEnds) {
  const auto tensor = DeclareTensor();
  const auto first = Push(tensor, nullptr, nullptr);
  const auto second = Push(tensor, nullptr, nullptr);
  operations_.SetTag(second, 102);
  uint64_t tag = 0;
  EXPECT_EQ(operations_.NextDone(0, &tag).code, ADDEND_ERROR_TIMEOUT);
  ASSERT_TRUE(operations_.EndRound(kNumber, 1, {}).ok());
  operations_.SetTag(first, 101);
  ASSERT_TRUE(operations_.EndRound(kNumber, 2, {}).ok());
  ASSERT_TRUE(operations_.NextDone(0, &tag).ok());
  EXPECT_EQ(tag, 101u);
  ASSERT_TRUE(operations_.NextDone(0, &tag).ok());
  EXPECT_EQ(tag, 102u);
}

// A copy that goes on until the test lets it end.
TEST_F(OperationsTest, APushTellsHowLongCallersHaveSpunSinceTheLast) {
  const auto tensor = DeclareTensor();
  Reading reading({.deliver = [] { return Reading::Step::kNothing; }, .await = [](int) {}},
                  std::chrono::milliseconds(1));
  operations_.DeliverBy(&reading);
  reading.While([] { return false; },
                std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  for (const bool first : {true, false}) {
    Push(tensor, nullptr, nullptr);
    EXPECT_EQ(Sent<ipc::PushMessage>().back().spun_us > 0, first);
    ASSERT_TRUE(operations_.EndRound(kNumber, first ? 1 : 2, {}).ok());
  }
}

class SlowCopyTest : public OperationsTest {
 protected:
  SlowCopyTest()
      : OperationsTest([this](void* to, const void* from, size_t bytes) {
          began_.count_down();
          go_on_.wait();
          Copy(to, from, bytes);
        }) {}

  std::latch began_{1};
  std::latch go_on_{1};
};

TEST_F(SlowCopyTest, FailureEndsTheOperationAfterTheCopyOfItsResult) {
  const auto tensor = DeclareTensor();
  std::vector<float> out(kElements, -1);
  const auto operation = Push(tensor, nullptr, out.data());
  operations_.SetTag(operation, 101);
  const auto next = Push(tensor, nullptr, out.data());
  std::thread reader([&] { EXPECT_TRUE(operations_.EndRound(kNumber, 1, {}).ok()); });
  began_.wait();
  operations_.Fail(lost_);
  EXPECT_EQ(operations_.Wait(next, 0).text, lost_.text);
  EXPECT_EQ(operations_.Wait(operation, 0).code, ADDEND_ERROR_TIMEOUT) << "its memory is in use";
  uint64_t tag = 0;
  EXPECT_EQ(operations_.NextDone(0, &tag).code, ADDEND_ERROR_TIMEOUT) << "a tag will come";
  go_on_.count_down();
  EXPECT_EQ(operations_.Wait(operation, -1).text, lost_.text);
  ASSERT_TRUE(operations_.NextDone(-1, &tag).ok());
  EXPECT_EQ(tag, 101u);
  EXPECT_EQ(operations_.NextDone(-1, &tag).text, lost_.text);
  reader.join();
}

TEST_F(SlowCopyTest, FailureEndsTheOperationAfterTheCopyOfItsContribution) {
  const auto tensor = DeclareTensor();
  const std::vector<float> in(kElements, 3);
  std::shared_ptr<Operation> operation;
  std::thread caller(
      [&] { EXPECT_TRUE(operations_.Push(tensor, in.data(), nullptr, 0, &operation).ok()); });
  began_.wait();
  operations_.Fail(lost_);
  go_on_.count_down();
  caller.join();
  EXPECT_EQ(operations_.Wait(operation, 0).text, lost_.text);
  EXPECT_TRUE(Sent<ipc::PushMessage>().empty()) << "the job has ended";
}

TEST_F(OperationsTest, FailureReachesEveryWaitingAndLaterCall) {
  const auto tensor = DeclareTensor();
  const auto under_way = Push(tensor, nullptr, nullptr);
  const auto queued = Push(tensor, nullptr, nullptr);
  std::vector<std::thread> waiters;
  for (const auto& operation : {under_way, queued}) {
    waiters.emplace_back(
        [&, operation] { EXPECT_EQ(operations_.Wait(operation, -1).text, lost_.text); });
  }
  waiters.emplace_back([&] {
    uint64_t tag;
    EXPECT_EQ(operations_.NextDone(-1, &tag).text, lost_.text);
  });
  std::shared_ptr<Tensor> other;
  const auto fail = [&](uint64_t) { operations_.Fail(lost_); };
  EXPECT_EQ(Declare("u", fail, &other).text, lost_.text);
  for (std::thread& waiter : waiters) waiter.join();
  operations_.Fail({ADDEND_ERROR_INTERNAL, "a later error"});
  std::shared_ptr<Operation> operation;
  EXPECT_EQ(operations_.Push(tensor, nullptr, nullptr, 0, &operation).text, lost_.text);
  EXPECT_EQ(operations_.Undeclare(tensor).text, lost_.text);
  Operation on_device;
  EXPECT_EQ(device_rounds_.Begin(tensor, {}, 70, &on_device).text, lost_.text);
  EXPECT_EQ(Sent<ipc::PushMessage>().size(), 1u);
}

// Other processes may still copy the contribution from where it lies.
TEST_F(OperationsTest, OnlyAFailureSetsTheGuardOfAPushUnderWay) {
  const size_t slot = ipc::SlotBytes(kElements * sizeof(float));
  const auto guard_after = [&](const std::function<void()>& end) {
    const auto tensor = DeclareTensor();
    const GuardedFd memory = SegmentMemory(slot + ipc::kGuardBytes);
    EXPECT_TRUE(Segment::Map(memory.get(), slot, Segment::Access::kReadWrite, "t",
                             &tensor->contribution, ipc::kGuardBytes)
                    .ok());
    const auto pending = Push(tensor, nullptr, nullptr);
    end();
    EXPECT_NE(operations_.Wait(pending, 0).code, ADDEND_ERROR_TIMEOUT);
    uint32_t guard = 0;
    EXPECT_EQ(::pread(memory.get(), &guard, sizeof(guard), static_cast<off_t>(slot)),
              static_cast<ssize_t>(sizeof(guard)));
    return guard;
  };
  EXPECT_EQ(guard_after([&] { operations_.Clear(); }), 0u) << "the rank has contributed";
  EXPECT_EQ(guard_after([&] { operations_.Fail(lost_); }), 1u);
}

TEST_F(OperationsTest, FailureOfTheGpuIsTheJobs) {
  ASSERT_TRUE(device_rounds_.OnGroup({.scatter = true}).ok());
  const auto tensor = DeclareTensor();
  auto operation = std::make_shared<Operation>();
  operation->tensor = tensor;
  ASSERT_TRUE(device_rounds_.Begin(tensor, {.dtype = DType::kFloat32}, 70, operation.get()).ok());
  ASSERT_TRUE(operations_.Enqueue(operation).ok());
  record_.sink->Failed("an error of CUDA");
  EXPECT_EQ(operations_.Wait(operation, -1).text, "an error of CUDA");
}

TEST_F(OperationsTest, CloseRefusesCallsAndClearEndsPushes) {
  const auto tensor = DeclareTensor();
  const auto pending = Push(tensor, nullptr, nullptr);
  EXPECT_TRUE(operations_.Close());
  EXPECT_FALSE(operations_.Close());
  std::shared_ptr<Operation> operation;
  EXPECT_EQ(operations_.Push(tensor, nullptr, nullptr, 0, &operation).code, ADDEND_ERROR_STATE);
  EXPECT_EQ(operations_.Wait(pending, 0).code, ADDEND_ERROR_TIMEOUT);
  operations_.Clear();
  EXPECT_THAT(operations_.Wait(pending, 0).text, HasSubstr("while this push-pull was pending"));
  EXPECT_EQ(operations_.Find(kNumber), nullptr);
}

}  // namespace
}  // namespace addend::client
