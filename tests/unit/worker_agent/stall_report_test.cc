// Open rounds, as the scheduler hears of them.
#include "services/worker_agent/stall_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_agent/fake_generation.h"

namespace addend {
namespace {

using ::testing::ElementsAre;

class StallReportTest : public DeclaredTensorTest {
 protected:
  void Pass(absl::Duration time) {
    node_.loop.Pass(time);
    report_.Check();
  }

  StallReport report_{generation_.context, &generation_.ranks, &generation_.tensors,
                      &generation_.state};
};

TEST_F(StallReportTest, HeartbeatListsRoundsThatAreOpenForASecondAndAfterAQuestionAll) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  v1::HeartbeatRequest early;
  report_.FillBeat(&early);
  EXPECT_EQ(early.stalled_size(), 0);
  v1::NodeUpdate update;
  update.set_question(7);
  update.add_asked("unknown");
  report_.Apply(update);
  EXPECT_EQ(node_.reports.said.back(), "beat");
  v1::HeartbeatRequest beat;
  report_.FillBeat(&beat);
  EXPECT_EQ(beat.answer(), 7u);
  ASSERT_EQ(beat.stalled_size(), 2);
  EXPECT_EQ(beat.stalled(0).name(), "t");
  EXPECT_EQ(beat.stalled(0).round(), 1u);
  EXPECT_THAT(beat.stalled(0).missing(), ElementsAre(3u));
  EXPECT_GT(beat.stalled(0).open_s(), 0);
  EXPECT_EQ(beat.stalled(1).name(), "unknown");
  EXPECT_EQ(beat.stalled(1).round(), 0u);
  EXPECT_THAT(beat.stalled(1).missing(), ElementsAre(2u, 3u));
}

TEST_F(StallReportTest, SchedulerHearsAtOnceOfALongRoundAndOfItsEnd) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  Pass(absl::Seconds(4));
  EXPECT_THAT(node_.reports.said, testing::Not(testing::Contains("beat")));
  Pass(absl::Seconds(1));
  EXPECT_EQ(node_.reports.said.back(), "beat");
}

TEST_F(StallReportTest, FailingGenerationReportsNothing) {
  ASSERT_TRUE(generation_.Push(tensor_, 0, {1, 2}).ok());
  generation_.state.Fail(absl::InternalError("why"));
  const size_t before = node_.reports.said.size();
  Pass(absl::Seconds(20));
  EXPECT_EQ(node_.reports.said.size(), before);
  v1::HeartbeatRequest beat;
  report_.FillBeat(&beat);
  EXPECT_EQ(beat.stalled_size(), 0);
}

}  // namespace
}  // namespace addend
