#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/status/example_status.h"
#include "tools/addendctl/ask.h"
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

TEST(StatusTableTest, ShowsTheShortestTimeOfEncodedPayloadsBesideTheRawTime) {
  v1::GetStatusResponse status = ExampleStatus();
  v1::JobStatus* const job = status.mutable_jobs(0);
  job->set_t_opt_s(2);
  EXPECT_THAT(StatusText(status, "x:1"), HasSubstr(", t_opt 2 s\n"));
  job->set_t_opt_encoded_s(2);
  job->set_contribution_ratio(1);
  job->set_result_ratio(1);
  EXPECT_THAT(StatusText(status, "x:1"), HasSubstr(", t_opt 2 s\n")) << "payloads are raw";
  job->set_t_opt_encoded_s(1.5);
  job->set_contribution_ratio(0.5);
  job->set_result_ratio(0.75);
  EXPECT_THAT(StatusText(status, "x:1"),
              HasSubstr(", t_opt 2 s, encoded 1.5 s (contributions 50.0 %, results 75.0 % of "
                        "their bytes)\n"));
}

TEST(StatusTableTest, SaysThatTheClusterIsEmpty) {
  EXPECT_EQ(JobsText({}), "No jobs.\n");
  EXPECT_EQ(NodesText({}), "No nodes.\n");
  EXPECT_THAT(StatusText({}, "x:1"), HasSubstr("No summation servers."));
}

TEST(MakePrintableTest, CoversEveryTextWhateverItIsNestedIn) {
  v1::GetStatusResponse status;
  status.set_version("1\n");
  v1::JobStatus* const job = status.add_jobs();
  job->set_reason("\x1b[2J");
  job->mutable_settings()->set_intranode("a\rb");
  job->add_nodes()->set_hostname("a\nb");
  MakePrintable(&status);
  EXPECT_EQ(status.version(), "1\\n");
  EXPECT_EQ(job->reason(), "\\x1b[2J");
  EXPECT_EQ(job->settings().intranode(), "a\\rb");
  EXPECT_EQ(job->nodes(0).hostname(), "a\\nb");
}

}  // namespace
}  // namespace addend
