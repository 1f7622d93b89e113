// The copies of an asynchronous value: reuse, lending, and the memory of the job.
#include "lib/summation/value_copies.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace addend {
namespace {

constexpr size_t kBytes = 64;

class ValueCopiesTest : public testing::Test {
 protected:
  // The next value, as the latest copy.
  std::shared_ptr<Arena> Next() {
    auto room = copies_.RoomForNext();
    if (!room.ok()) return nullptr;
    copies_.Replace(*room);
    return *std::move(room);
  }
  MemoryBudget budget_{kBytes};  // a further copy
  std::shared_ptr<JobMemory> memory_ = std::make_shared<JobMemory>(&budget_, 0);
  ValueCopies copies_{kBytes, memory_};
};

TEST_F(ValueCopiesTest, FirstCopyIsZero) {
  const auto zeros = *copies_.LatestOrZeros();
  const auto bytes = zeros->memory();
  EXPECT_GE(bytes.size(), kBytes);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(zeros, copies_.latest());
}

TEST_F(ValueCopiesTest, LatestCopyIsReusedUnlessItIsLent) {
  const Arena* const first = Next().get();
  EXPECT_EQ(Next().get(), first);
  const auto lent = copies_.latest();
  EXPECT_TRUE(copies_.IsLent());
  EXPECT_NE(Next().get(), first);
}

TEST_F(ValueCopiesTest, FormerCopyIsReusedWhenItIsFree) {
  auto lent = Next();
  const Arena* const first = lent.get();
  const auto second = Next();
  lent.reset();
  EXPECT_TRUE(copies_.AnyIsFree());
  EXPECT_EQ(Next().get(), first);
}

TEST_F(ValueCopiesTest, JobPaysForCopiesAboveTheReservedCopies) {
  std::vector<std::shared_ptr<Arena>> lent = {Next()};
  EXPECT_TRUE(copies_.AnyIsFree()) << "a second is reserved";
  lent.push_back(Next());
  EXPECT_FALSE(copies_.AnyIsFree());
  EXPECT_FALSE(copies_.HasFurther());
  EXPECT_EQ(budget_.used(), 0u);
  lent.push_back(Next());
  ASSERT_NE(lent.back(), nullptr);
  EXPECT_TRUE(copies_.HasFurther());
  EXPECT_EQ(budget_.used(), kBytes);
  EXPECT_FALSE(copies_.AnyIsFree());
  EXPECT_EQ(Next(), nullptr) << "the job cannot pay for another copy";
}

TEST_F(ValueCopiesTest, DropReturnsTheMemoryOfFurtherCopiesThatAreNotLent) {
  std::vector<std::shared_ptr<Arena>> lent = {Next(), Next(), Next()};
  copies_.DropFurther();
  EXPECT_EQ(budget_.used(), kBytes) << "all are lent";
  lent.erase(lent.begin());  // a reserved copy: a further copy takes its place
  copies_.DropFurther();
  EXPECT_FALSE(copies_.HasFurther());
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(ValueCopiesTest, ReplaceWithNullKeepsTheLentCopy) {
  const auto lent = Next();
  copies_.Replace(nullptr);
  EXPECT_EQ(copies_.latest(), nullptr);
  EXPECT_TRUE(copies_.IsLent());
}

}  // namespace
}  // namespace addend
