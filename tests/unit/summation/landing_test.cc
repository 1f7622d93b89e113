// The receive buffers of a link.
#include "lib/summation/landing.h"

#include <gtest/gtest.h>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

class LandingTest : public JobFixture {
 protected:
  Landing landing_;
};

TEST_F(LandingTest, PayloadsOfABundleShareTheScratchMemoryWithoutOverlap) {
  const MutableBytes first = *landing_.ScratchFor(100, &landing_.Begin());
  const MutableBytes second = *landing_.ScratchFor(100, &landing_.Begin());
  EXPECT_EQ(first.size(), 100u);
  EXPECT_GE(second.data(), first.data() + 100);
  EXPECT_EQ(landing_.Take().own, nullptr);
}

TEST_F(LandingTest, PayloadBeyondTheScratchMemoryGetsABufferThatIsUsedAgain) {
  ASSERT_TRUE(landing_.ScratchFor(60 << 10, &landing_.Begin()).ok());
  ASSERT_TRUE(landing_.ScratchFor(60 << 10, &landing_.Begin()).ok());
  EXPECT_EQ(landing_.Take().own, nullptr);
  Landing::Placed beside = landing_.Take();
  ASSERT_NE(beside.own, nullptr);
  const std::byte* const buffer = beside.own->memory().data();
  landing_.Reuse(&beside);
  ASSERT_TRUE(landing_.ScratchFor(60 << 10, &landing_.Begin()).ok());
  EXPECT_EQ(landing_.ScratchFor(60 << 10, &landing_.Begin())->data(), buffer);
}

TEST_F(LandingTest, ScratchMemoryGrowsOnlyWhenNoPayloadIsOnItsWayIntoIt) {
  const std::byte* const small = landing_.ScratchFor(100, &landing_.Begin())->data();
  Landing::Placed& large = landing_.Begin();
  ASSERT_TRUE(landing_.ScratchFor(1 << 20, &large).ok());
  EXPECT_NE(large.own, nullptr);
  landing_.Take();
  landing_.Take();
  Landing::Placed& again = landing_.Begin();
  EXPECT_NE(landing_.ScratchFor(1 << 20, &again)->data(), small);
  EXPECT_EQ(again.own, nullptr);
}

TEST_F(LandingTest, AbandonNamesThePartitionsThatWereReceivedInto) {
  const auto partition = Summed(3);
  landing_.Begin().partition = partition;
  landing_.Begin();
  EXPECT_TRUE(landing_.IsReceiving(*partition));
  EXPECT_FALSE(landing_.IsReceiving(*Summed(3)));
  EXPECT_TRUE(landing_.IsReceiving(kFixtureTensor, {2, 3}));
  EXPECT_FALSE(landing_.IsReceiving(kFixtureTensor, {2}));
  EXPECT_EQ(landing_.Abandon(), std::vector<std::shared_ptr<Partition>>{partition});
  EXPECT_FALSE(landing_.IsReceiving(*partition));
}

}  // namespace
}  // namespace addend
