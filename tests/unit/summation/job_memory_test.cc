// A job's part of a server's memory, and its early buffers.
#include "lib/summation/job_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "lib/summation/early_buffers.h"

namespace addend {
namespace {

using testing::HasSubstr;

constexpr uint64_t kPage = 4096;

TEST(JobMemory, RefusalNamesTheLimitAndTheNumbers) {
  MemoryBudget budget(10 << 20);
  JobMemory job(&budget, 4 << 20);
  ASSERT_TRUE(job.Reserve("fits", 3 << 20).ok());
  const absl::Status refused = job.Reserve("w", 2 << 20);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(refused.message()),
            "tensor 'w' needs 2MiB for its accumulators, and 1MiB of the 4MiB that a job may take "
            "here are free (--job-memory-limit)");
  JobMemory unlimited(&budget, 0);
  EXPECT_THAT(std::string(unlimited.Reserve("w", 8 << 20).message()),
              HasSubstr("and 7MiB of the memory limit of 10MiB are free"));
}

TEST(JobMemory, JobAtItsLimitLeavesTheRestToOtherJobs) {
  MemoryBudget budget(10 * kPage);
  JobMemory greedy(&budget, 6 * kPage);
  JobMemory modest(&budget, 6 * kPage);
  ASSERT_TRUE(greedy.Reserve("a", 6 * kPage).ok());
  EXPECT_FALSE(greedy.Reserve("b", 1).ok());
  EXPECT_TRUE(modest.Reserve("c", 4 * kPage).ok());
  greedy.Release(6 * kPage);
  EXPECT_TRUE(greedy.Reserve("b", 6 * kPage).ok());
}

TEST(JobMemory, SingleJobMayKeepAllFreeMemory) {
  MemoryBudget budget(10 * kPage);
  JobMemory job(&budget, 0);
  ASSERT_TRUE(job.Reserve("a", 4 * kPage).ok());
  EXPECT_TRUE(job.TryKeep(6 * kPage));
  EXPECT_FALSE(job.TryKeep(1));
  EXPECT_FALSE(job.over_part());
}

TEST(JobMemory, JobAboveItsShareIsOverLimitWhenAnotherJobJoins) {
  MemoryBudget budget(10 * kPage);
  JobMemory first(&budget, 0);
  ASSERT_TRUE(first.TryKeep(9 * kPage));
  std::optional<JobMemory> second;
  second.emplace(&budget, 0);
  EXPECT_TRUE(first.over_part());
  EXPECT_FALSE(second->over_part());
  first.LetGo(4 * kPage);
  EXPECT_FALSE(first.over_part());
  EXPECT_TRUE(second->TryKeep(5 * kPage));
  EXPECT_FALSE(second->TryKeep(1));
  second.reset();
  EXPECT_TRUE(first.TryKeep(5 * kPage)) << "the other job has gone";
}

TEST(JobMemory, EarlyContributionsCountAgainstTheJobsOwnLimit) {
  MemoryBudget budget(0);
  JobMemory job(&budget, 4 * kPage);
  ASSERT_TRUE(job.Reserve("a", 3 * kPage).ok());
  EXPECT_TRUE(job.TryKeep(kPage));
  EXPECT_FALSE(job.TryKeep(1));
  job.LetGo(kPage);
  ASSERT_TRUE(job.Reserve("b", kPage).ok()) << "accumulators come first";
  EXPECT_FALSE(job.TryKeep(1));
}

// Its nodes may still have the keys by which they wrote there.
TEST(JobMemory, BufferOfAJobIsNotReusedForAnotherJob) {
  MemoryBudget budget(8 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto one = std::make_shared<JobMemory>(&budget, 0);
  const auto other = std::make_shared<JobMemory>(&budget, 0);
  const std::byte* const first = buffers->Take(kPage, one).memory().data();
  EXPECT_NE(buffers->Take(kPage, other).memory().data(), first);
  EXPECT_EQ(buffers->Take(kPage, one).memory().data(), first);
}

TEST(JobMemory, UnusedBuffersOfAnEndedJobAreFreedForTheNextJob) {
  MemoryBudget budget(8 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  auto gone = std::make_shared<JobMemory>(&budget, 0);
  buffers->Take(kPage, gone);
  EXPECT_EQ(budget.used(), kPage) << "it is kept for the job's next one";
  gone.reset();
  const auto next = std::make_shared<JobMemory>(&budget, 0);
  const auto buffer = buffers->Take(kPage, next);
  EXPECT_EQ(budget.used(), kPage);
}

TEST(JobMemory, BufferCountsForItsJobUntilItIsReturned) {
  MemoryBudget budget(4 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto greedy = std::make_shared<JobMemory>(&budget, 0);
  const auto modest = std::make_shared<JobMemory>(&budget, 0);
  {
    const auto one = buffers->Take(kPage, greedy);
    const auto two = buffers->Take(kPage, greedy);
    EXPECT_FALSE(two.memory().empty());
    EXPECT_TRUE(buffers->Take(kPage, greedy).memory().empty()) << "it has its half";
    EXPECT_FALSE(buffers->Take(kPage, modest).memory().empty());
  }
  // Unused buffers count for no job.
  const auto first = buffers->Take(kPage, modest);
  const auto second = buffers->Take(kPage, modest);
  EXPECT_FALSE(second.memory().empty());
}

}  // namespace
}  // namespace addend
