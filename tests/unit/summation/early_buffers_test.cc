// The memory of early contributions: its budget, and the reuse of buffers.
#include "lib/summation/early_buffers.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace addend {
namespace {

TEST(EarlyBuffersTest, BufferTakesWholePagesOfTheBudgetAndReturnsThem) {
  constexpr size_t kPage = 4096;
  MemoryBudget budget(3 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  {
    const auto buffer = buffers->Take(kPage + 1, job);
    EXPECT_EQ(buffer.memory().size(), kPage + 1);
    EXPECT_EQ(budget.used(), 2 * kPage);
    EXPECT_TRUE(buffers->Take(kPage + 1, job).memory().empty()) << "there is no room";
  }
  EXPECT_EQ(budget.used(), 2 * kPage) << "kept for the next one";
  const auto same = buffers->Take(2 * kPage, job);
  EXPECT_EQ(budget.used(), 2 * kPage);
  const auto other = buffers->Take(1, job);
  EXPECT_EQ(budget.used(), 3 * kPage);
}

TEST(EarlyBuffersTest, UnusedBuffersAreFreedForOtherSizesAndForAccumulators) {
  constexpr size_t kPage = 4096;
  MemoryBudget budget(3 * kPage);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  buffers->Take(2 * kPage, job);
  {
    const auto larger = buffers->Take(3 * kPage, job);
    EXPECT_FALSE(larger.memory().empty());
    ASSERT_TRUE(budget.TryReserve(kPage));
  }
  EXPECT_EQ(budget.used(), kPage) << "over the limit nothing is kept";
  buffers->Take(kPage, job);
  buffers->DropUnused();
  EXPECT_EQ(budget.used(), kPage);
  EXPECT_EQ(budget.peak(), 3 * kPage);
}

TEST(EarlyBuffersTest, BufferThatWasInUseWhenAllWereDroppedIsNotKept) {
  MemoryBudget budget(0);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  {
    const auto used = buffers->Take(1, job);
    buffers->DropAll();
    EXPECT_GT(budget.used(), 0u);
  }
  EXPECT_EQ(budget.used(), 0u);
  buffers->Take(1, job);
  EXPECT_GT(budget.used(), 0u) << "a later one is";
}

TEST(EarlyBuffersTest, UnusedBuffersAreLimited) {
  MemoryBudget budget(0);
  const auto buffers = EarlyBuffers::Create(&budget);
  const auto job = std::make_shared<JobMemory>(&budget, 0);
  std::vector<EarlyBuffers::Buffer> taken;
  for (int i = 0; i < 5; ++i)
    taken.push_back(buffers->Take(EarlyBuffers::kUnusedBytesMax / 2, job));
  taken.clear();
  EXPECT_LE(budget.used(), EarlyBuffers::kUnusedBytesMax);
  EXPECT_GT(budget.used(), 0u);
}

}  // namespace
}  // namespace addend
