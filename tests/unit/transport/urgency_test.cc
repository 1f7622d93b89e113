#include "lib/transport/urgency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace addend {
namespace {

constexpr int kTensors = 3 * Urgency::kClasses;

// The backward pass of tensors of one size; tensor 0 is the most urgent.
class UrgencyTest : public testing::Test {
 protected:
  bool Push(int tensor, uint64_t bytes = 100) { return urgency_.OnPush(-tensor, bytes); }
  void Sweep(int last = 0) {
    for (int tensor = kTensors; tensor-- > last;) Push(tensor);
  }
  int Of(int tensor) const { return -urgency_.Of(-tensor); }

  Urgency urgency_;
};

TEST_F(UrgencyTest, PrioritiesHoldUntilASweepIsKnown) {
  Sweep();
  for (int tensor = 0; tensor < kTensors; ++tensor) EXPECT_EQ(Of(tensor), tensor);
}

TEST_F(UrgencyTest, ASweepHasClassesUntilItsMostUrgentTensorIsPushed) {
  Sweep();
  EXPECT_TRUE(Push(kTensors - 1));
  for (int tensor = 0; tensor < kTensors; ++tensor) EXPECT_EQ(Of(tensor), tensor / 3 * 3);
  EXPECT_FALSE(Push(1));
  EXPECT_TRUE(Push(0));
  for (int tensor = 0; tensor < kTensors; ++tensor) EXPECT_EQ(Of(tensor), tensor);
}

TEST_F(UrgencyTest, ClassesHaveTheSameBytesNotTheSameNumberOfTensors) {
  for (const bool again : {false, true}) {
    for (int tensor = kTensors; tensor-- > 1;) Push(tensor, tensor == 4 ? 10'000 : 10);
    if (!again) Push(0, 10);
  }
  EXPECT_EQ(Of(kTensors - 1), 5) << "all behind the large tensor";
  EXPECT_EQ(Of(4), 4);
  EXPECT_EQ(Of(3), 0) << "all before it";
}

TEST_F(UrgencyTest, ASweepWithoutItsMostUrgentTensorEndsWithTheNext) {
  Sweep();
  Sweep(/*last=*/1);
  EXPECT_EQ(Of(kTensors - 1), kTensors - 3) << "it is still awaited";
  Sweep(/*last=*/1);
  EXPECT_EQ(Of(kTensors - 1), kTensors - 1);
}

TEST_F(UrgencyTest, TensorsOfOnePriorityAreNoSweep) {
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Push(3));
  EXPECT_EQ(Of(3), 3);
  EXPECT_EQ(Of(4), 4);
}

TEST_F(UrgencyTest, TensorsWithoutElementsAreAClass) {
  for (int tensor = kTensors; tensor-- > 0;) Push(tensor, 0);
  Push(kTensors - 1, 0);
  EXPECT_EQ(Of(kTensors - 1), 0);
}

TEST_F(UrgencyTest, FewPrioritiesAreNoSweep) {
  for (int push = 0; push < 100; ++push) {
    EXPECT_FALSE(Push(push % (Urgency::kLeastPriorities - 1)));
  }
}

TEST_F(UrgencyTest, PrioritiesThatNeverRecurAreForgotten) {
  bool changed = false;
  for (int push = 0; push < 3 * static_cast<int>(Urgency::kMostPriorities); ++push) {
    changed |= urgency_.OnPush(push, 100);
  }
  EXPECT_FALSE(changed) << "each is more urgent than all before";
  urgency_.OnPush(0, 100);
  EXPECT_EQ(urgency_.Of(0), 0) << "it was forgotten, so it does not recur";
}

TEST_F(UrgencyTest, LessUrgentPushesAfterTheMostUrgentBeginNoSweep) {
  for (int pass = 0; pass < 3; ++pass) {
    Sweep();
    EXPECT_FALSE(Push(kTensors)) << "autograd is done with it last";
    EXPECT_EQ(Of(kTensors - 1), kTensors - 1);
  }
}

TEST_F(UrgencyTest, PushesWithoutAnOrderAreNoSweep) {
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 0; i < kTensors; ++i) EXPECT_FALSE(Push(5 * i % kTensors)) << "pass " << pass;
  }
}

TEST_F(UrgencyTest, TheOrderIsKeptAndClassesAreTold) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto all = [this] {
    std::vector<int> urgencies;
    for (int tensor = 30; tensor-- > 0;) urgencies.push_back(urgency_.Of(-tensor));
    return urgencies;
  };
  int tensor = 0;
  bool swept = false;
  for (int push = 0; push < 10'000; ++push) {
    const std::vector<int> before = all();
    const bool ascends = random() % 16 != 0;
    tensor = ascends ? (tensor + 29) % 30 : static_cast<int>(random() % 30);
    const bool changed = Push(tensor, random() % 1000);
    swept |= changed;
    const std::vector<int> after = all();
    EXPECT_TRUE(std::is_sorted(after.begin(), after.end()));
    if (!changed) {
      EXPECT_EQ(before, after);
    }
  }
  EXPECT_TRUE(swept);
}

}  // namespace
}  // namespace addend
