// The executor on a physical GPU: uses that PyTorch's trainers in tests/gpu do not have. Skipped on
// machines without a GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/client/device.h"

void WriteWhereNothingIs(cudaStream_t stream);  // illegal_access.cu

extern "C" addend::client::DeviceExecutor* addend_make_device_executor(
    uint32_t version, addend::client::DeviceSink* sink, char* why, size_t why_bytes);

namespace addend::client {
namespace {

using testing::HasSubstr;

constexpr auto kLimit = std::chrono::seconds(30);

class Ear final : public DeviceSink {
 public:
  virtual ~Ear() = default;
  void Staged(uint64_t round, uint64_t bytes) override {
    Change([&] { staged_[round] = bytes; });
  }
  void Fetched(uint32_t /*tensor*/, uint64_t /*number*/, uint64_t offset, uint64_t bytes) override {
    Change([&] { fetched_ = offset + bytes; });
  }
  void Failed(const char* why) override {
    Change([&] { failure_ = why; });
  }

  bool AwaitStaged(const DeviceRound& round) {
    return Await([&] { return staged_[round.id] == round.elements * SizeOf(round.dtype); });
  }
  bool AwaitFetched(uint64_t end) {
    return Await([&] { return fetched_ == end; });
  }
  std::string AwaitFailure() {
    Await([&] { return !failure_.empty(); });
    return failure_;
  }

 private:
  template <typename Function>
  void Change(Function function) {
    const std::lock_guard lock(mu_);
    function();
    changed_.notify_all();
  }
  template <typename Condition>
  bool Await(Condition condition) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, kLimit, condition);
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<uint64_t, uint64_t> staged_;  // bytes, by round
  uint64_t fetched_ = 0;
  std::string failure_;
};

class ExecutorGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "this machine has no GPU";
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    char why[1024] = {};
    executor_.reset(addend_make_device_executor(kDeviceVersion, &ear_, why, sizeof(why)));
    ASSERT_NE(executor_, nullptr) << why;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }

  // A round of float32, whose memory on the device holds 0, 1, 2, ...
  void Make(uint64_t elements, DType dtype) {
    values_.resize(elements);
    for (uint64_t i = 0; i < elements; ++i) values_[i] = static_cast<float>(i % 251);
    host_.assign(2 * elements * SizeOf(dtype), std::byte{});
    ASSERT_EQ(cudaMalloc(&device_, elements * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(device_, values_.data(), elements * sizeof(float), cudaMemcpyHostToDevice),
              cudaSuccess);
    ++round_.id;
    round_.tensor = 1;
    round_.number = 7;
    round_.elements = elements;
    round_.dtype = dtype;
    round_.caller_dtype = DType::kFloat32;
    round_.op = ReduceOp::kSum;
    round_.in = round_.out = device_;
    round_.contribution = host_.data();
    round_.result = host_.data() + elements * SizeOf(dtype);
  }
  uint64_t Size() const { return round_.elements * SizeOf(round_.dtype); }

  // Hands the contribution back as the result; the caller's memory then has it.
  std::vector<float> Return() {
    std::memcpy(host_.data() + Size(), host_.data(), Size());
    bool complete = false;
    EXPECT_TRUE(executor_->Arrived(&round_, 0, Size(), &complete)) << executor_->Error();
    EXPECT_TRUE(complete);
    EXPECT_TRUE(executor_->WaitOn(&round_, stream_)) << executor_->Error();
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    executor_->End(&round_);
    std::vector<float> found(round_.elements);
    EXPECT_EQ(
        cudaMemcpy(found.data(), device_, found.size() * sizeof(float), cudaMemcpyDeviceToHost),
        cudaSuccess);
    return found;
  }

  Ear ear_;
  std::unique_ptr<DeviceExecutor> executor_;
  cudaStream_t stream_ = nullptr;
  std::vector<float> values_;
  std::vector<std::byte> host_;  // contribution, result
  void* device_ = nullptr;
  DeviceRound round_;
};

TEST_F(ExecutorGpuTest, MemoryThatIsNotPinnedServesToo) {
  Make(3'000'001, DType::kFloat32);
  ASSERT_TRUE(executor_->Begin(&round_, stream_)) << executor_->Error();
  ASSERT_TRUE(executor_->Contribute(&round_, 1)) << executor_->Error();
  ASSERT_TRUE(ear_.AwaitStaged(round_));
  EXPECT_EQ(std::memcmp(host_.data(), values_.data(), Size()), 0);
  EXPECT_EQ(Return(), values_);
}

TEST_F(ExecutorGpuTest, HalvesAreWidenedInPlace) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Make(5'000'003, dtype);
    executor_->Map(host_.data(), host_.size(), /*read_only=*/false);
    ASSERT_TRUE(executor_->Begin(&round_, stream_)) << executor_->Error();
    ASSERT_TRUE(executor_->Contribute(&round_, 1)) << executor_->Error();
    ASSERT_TRUE(ear_.AwaitStaged(round_));
    EXPECT_EQ(Return(), values_) << Name(dtype);  // integers below 256 are exact in both
    executor_->Unmap(host_.data());
  }
}

TEST_F(ExecutorGpuTest, ANicReadsExportedMemoryAndWhatItDidNotReadIsFetched) {
  Make(3'000'001, DType::kFloat32);
  executor_->Map(host_.data(), host_.size(), /*read_only=*/false);
  std::byte* exported = nullptr;
  int dmabuf = -1;
  if (!executor_->Export(Size(), &exported, &dmabuf)) {
    // Only a driver without dma-buf excuses it.
    ASSERT_THAT(executor_->Error(), HasSubstr("its driver"));
    GTEST_SKIP() << executor_->Error();
  }
  EXPECT_GE(lseek(dmabuf, 0, SEEK_END), static_cast<off_t>(Size()));  // a dma-buf's size
  close(dmabuf);
  round_.direct = exported;
  ASSERT_TRUE(executor_->Begin(&round_, stream_)) << executor_->Error();
  ASSERT_TRUE(executor_->Contribute(&round_, 1)) << executor_->Error();
  ASSERT_TRUE(ear_.AwaitStaged(round_));
  std::vector<float> found(round_.elements);
  ASSERT_EQ(cudaMemcpy(found.data(), exported, Size(), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(found, values_);
  ASSERT_TRUE(executor_->Fetch(&round_, 0, Size())) << executor_->Error();
  ASSERT_TRUE(ear_.AwaitFetched(Size()));
  EXPECT_EQ(Return(), values_);
  executor_->Unexport(exported);
}

TEST_F(ExecutorGpuTest, ARoundThatIsAbandonedDisturbsNothing) {
  Make(3'000'001, DType::kFloat32);
  executor_->Map(host_.data(), host_.size(), /*read_only=*/false);
  ASSERT_TRUE(executor_->Begin(&round_, stream_)) << executor_->Error();
  ASSERT_TRUE(executor_->Contribute(&round_, 1)) << executor_->Error();
  executor_->End(&round_);
  ++round_.id;
  ASSERT_TRUE(executor_->Begin(&round_, stream_)) << executor_->Error();
  ASSERT_TRUE(executor_->Contribute(&round_, 1)) << executor_->Error();
  ASSERT_TRUE(ear_.AwaitStaged(round_));
  EXPECT_EQ(Return(), values_);
}

// A failure of the device stays for the rest of its process.
TEST_F(ExecutorGpuTest, AFailureOfTheDeviceIsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Make(1'000'000, DType::kFloat32);
        WriteWhereNothingIs(stream_);
        const bool begun = executor_->Begin(&round_, stream_) && executor_->Contribute(&round_, 1);
        const std::string why = begun ? ear_.AwaitFailure() : executor_->Error();
        std::fprintf(stderr, "%s\n", why.c_str());
        std::_Exit(why.empty() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "GPU 0000:");
}

}  // namespace
}  // namespace addend::client
