// The sentences about stalled rounds.
#include "lib/summation/stall_log.h"

#include <gmock/gmock.h>

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

OpenRoundInfo Open(double seconds, uint32_t partition = 0, uint64_t round = 7) {
  OpenRoundInfo info;
  info.job = JobId(1);
  info.tensor = TensorId(2);
  info.name = "layer";
  info.partition = partition;
  info.state = "open";
  info.round = Round(round);
  info.pushed = {NodeId(0)};
  info.missing = {NodeId(1), NodeId(3)};
  info.open_s = seconds;
  return info;
}

TEST(StallLogTest, MissingNodesAreNamedAfterTenAndAfterSixtySeconds) {
  StallLog log;
  EXPECT_THAT(log.Check({{Open(9.9)}}), IsEmpty());
  EXPECT_THAT(log.Check({{Open(10.5)}}),
              ElementsAre("round 7 of tensor 'layer' of job 1 has been open for 10 s: nodes 1, 3 "
                          "have not pushed it"));
  EXPECT_THAT(log.Check({{Open(30)}}), IsEmpty()) << "it was said";
  EXPECT_THAT(log.Check({{Open(61)}}), ElementsAre(HasSubstr("61 s")));
  EXPECT_THAT(log.Check({{Open(300)}}), IsEmpty());
}

TEST(StallLogTest, PartitionsOfATensorShareASentence) {
  StallLog log;
  EXPECT_EQ(log.Check({{Open(11, 0), Open(12, 1), Open(13, 2)}}).size(), 1u);
}

TEST(StallLogTest, NextRoundIsAnotherStall) {
  StallLog log;
  EXPECT_EQ(log.Check({{Open(11)}}).size(), 1u);
  EXPECT_THAT(log.Check({}), IsEmpty());
  EXPECT_EQ(log.Check({{Open(11, 0, 8)}}).size(), 1u);
}

TEST(StallLogTest, RecoveryNamesTheMissingReports) {
  OpenRoundInfo recovering = Open(15);
  recovering.state = "recovering";
  StallLog log;
  EXPECT_THAT(log.Check({{recovering}}), ElementsAre(HasSubstr("reported where partition 0")));
}

TEST(StallLogTest, HundredMissingNodesAreNotListed) {
  OpenRoundInfo many = Open(15);
  for (uint32_t node = 10; node < 110; ++node) many.missing.emplace_back(node);
  StallLog log;
  EXPECT_THAT(log.Check({{many}}), ElementsAre(HasSubstr("and 86 others")));
}

}  // namespace
}  // namespace addend
