#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/status/example_status.h"
#include "tools/addendctl/status_table.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

TEST(StatusTableTest, ShowsWhatMatters) {
  const std::string text = StatusText(ExampleStatus(), "127.0.0.1:7070");
  EXPECT_THAT(text, HasSubstr("Scheduler 127.0.0.1:7070: version 0.1.0"));
  EXPECT_THAT(text, HasSubstr("Job train: forming (waiting for node 1)"));
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("0 B of 8 GB"));
  EXPECT_THAT(text, HasSubstr("node 0 of train"));
  EXPECT_THAT(JobsText(ExampleStatus()), HasSubstr("1 of 2"));
  EXPECT_THAT(NodesText(ExampleStatus()), HasSubstr("yes"));
}

TEST(StatusTableTest, SaysThatNothingIsThere) {
  EXPECT_EQ(JobsText({}), "No jobs.\n");
  EXPECT_EQ(NodesText({}), "No nodes.\n");
  EXPECT_THAT(StatusText({}, "x:1"), HasSubstr("No summation servers."));
}

}  // namespace
}  // namespace addend
