// Devices that fail, memory that cannot be pinned, members that die.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "tests/support/emulated_cuda/emulated.h"
#include "tests/unit/cuda/ranks.h"

namespace addend::client {
namespace {

using ::testing::HasSubstr;

class DeviceFailureTest : public ::testing::Test {
 protected:
  ~DeviceFailureTest() override {
    emulated_cuda_set("fail_after_copies", -1);
    emulated_cuda_set("register_fails", 0);
    emulated_cuda_set("bytes_per_s", 0);
  }
  std::mt19937_64 random_{Seed()};
};

TEST_F(DeviceFailureTest, AFailingDeviceIsReportedOnceWithItsPlaceAndTheErrorsName) {
  for (uint32_t members = 1; members <= 2; ++members) {
    auto ranks = MakeRanks({"scattered", true, {}}, members, true);
    Case c;
    c.elements = 3 * ipc::ChunkElements(4);
    PushPull push_pull(c, members, random_);
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Begin(*rank));
    emulated_cuda_set("fail_after_copies", 1);
    emulated_cuda_set("bytes_per_s", 50'000'000);  // the first copy lasts while others are enqueued
    std::vector<std::string> noticed;
    for (auto& rank : ranks) {
      noticed.push_back(push_pull.Contribute(*rank) ? "" : rank->executor->Error());
    }
    for (auto& rank : ranks) {
      // On a machine that is slow enough a call notices it.
      std::string why = noticed[rank->member];
      if (why.empty()) why = rank->ear.AwaitFailure();
      EXPECT_THAT(why, HasSubstr(rank->executor->bus_id()));
      EXPECT_THAT(why, HasSubstr("cudaErrorIllegalAddress (an illegal memory access"));
      EXPECT_THAT(why, HasSubstr("dmesg"));
    }
    PushPull next(c, members, random_);
    EXPECT_FALSE(next.Begin(*ranks[0]));
    EXPECT_THAT(ranks[0]->executor->Error(), HasSubstr("cudaErrorIllegalAddress"));
    push_pull.End(ranks);
    const auto begin = std::chrono::steady_clock::now();
    ranks.clear();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    emulated_cuda_set("fail_after_copies", -1);
    emulated_cuda_set("bytes_per_s", 0);
  }
}

TEST_F(DeviceFailureTest, WaitingForAMissingMemberEnds) {
  auto ranks = MakeRanks({"scattered", true, {}}, 2, true);
  Case c;
  c.elements = 5000;
  PushPull push_pull(c, 2, random_);
  ASSERT_TRUE(push_pull.Begin(*ranks[0]));
  ASSERT_TRUE(push_pull.Contribute(*ranks[0]));
  push_pull.End(ranks);
  const auto begin = std::chrono::steady_clock::now();
  ranks.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(DeviceFailureTest, MemoryThatCannotBePinnedWorksAndIsReportedOnce) {
  auto ranks = MakeRanks({"scattered", true, {}}, 1, true);
  Bytes memory[2] = {Bytes(4096), Bytes(4096)};
  emulated_cuda_set("register_fails", 1);
  ::testing::internal::CaptureStderr();
  for (Bytes& bytes : memory) ranks[0]->executor->Map(bytes.data(), bytes.size(), false);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot be pinned (out of memory)"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Case c;
  c.elements = 1000;
  RunOnce(ranks, c, random_);
  for (Bytes& bytes : memory) ranks[0]->executor->Unmap(bytes.data());
}

TEST_F(DeviceFailureTest, MemoryIsPinnedUntilItIsUnmappedOrTheExecutorEnds) {
  const uint64_t before = emulated_cuda_count("pinned");
  auto ranks = MakeRanks({"scattered", true, {}}, 1, true);
  Bytes memory[2] = {Bytes(4096), Bytes(4096)};
  for (Bytes& bytes : memory) ranks[0]->executor->Map(bytes.data(), bytes.size(), true);
  EXPECT_EQ(emulated_cuda_count("pinned"), before + 2);
  ranks[0]->executor->Unmap(memory[0].data());
  EXPECT_EQ(emulated_cuda_count("pinned"), before + 1);
  ranks.clear();
  EXPECT_EQ(emulated_cuda_count("pinned"), before);
}

TEST_F(DeviceFailureTest, AnInvalidGroupIsRefused) {
  Rank rank(0);
  char id[kDeviceIdBytes] = {};
  EXPECT_FALSE(rank.Join({"", false, {}}, 2, id, true));
  EXPECT_THAT(rank.executor->Error(), HasSubstr("member 0 of 2, 0 roots"));
  EXPECT_FALSE(rank.Join({"", false, {2}}, 2, id, true));
}

TEST_F(DeviceFailureTest, TheCallersDeviceStaysCurrent) {
  cudaSetDevice(3);
  Rank rank(1);
  cudaSetDevice(3);
  Case c;
  c.elements = 10;
  PushPull push_pull(c, 2, random_);
  ASSERT_TRUE(push_pull.Begin(rank)) << rank.executor->Error();
  int current = 0;
  cudaGetDevice(&current);
  EXPECT_EQ(current, 3);
  rank.executor->End(&push_pull.round(1));
  cudaSetDevice(0);
}

}  // namespace
}  // namespace addend::client
