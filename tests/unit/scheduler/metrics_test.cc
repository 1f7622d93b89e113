#include "services/scheduler/metrics.h"

#include <gmock/gmock.h>
#include <prometheus/text_serializer.h>

namespace addend {
namespace {

using testing::HasSubstr;
using testing::Not;

class SchedulerMetricsTest : public testing::Test {
 protected:
  std::string Export() {
    metrics_.Update(summary_, 0);
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  prometheus::Registry registry_;
  SchedulerMetrics metrics_{&registry_};
  MembershipSummary summary_;
};

TEST_F(SchedulerMetricsTest, JobsComeAndGo) {
  summary_.by_job = {{.name = "a",
                      .t_opt_s = 0.5,
                      .tensor_bytes = 8,
                      .nodes_connected = 1,
                      .nodes_expected = 2,
                      .plan_version = 3}};
  EXPECT_THAT(Export(), HasSubstr("addend_job_optimal_seconds{job_name=\"a\"} 0.5\n"));
  EXPECT_THAT(Export(), Not(HasSubstr("addend_job_optimal_encoded_seconds{")));
  EXPECT_THAT(Export(),
              HasSubstr("addend_job_wire_ratio{job_name=\"a\",payload=\"contribution\"} 1\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_job_tensor_bytes{job_name=\"a\"} 8\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_job_nodes{job_name=\"a\",state=\"connected\"} 1\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_job_nodes{job_name=\"a\",state=\"expected\"} 2\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_job_plan_version{job_name=\"a\"} 3\n"));
  summary_.by_job.clear();
  EXPECT_THAT(Export(), Not(HasSubstr("job_name")));
}

TEST_F(SchedulerMetricsTest, MembersJobsAndPlansAreCounted) {
  summary_.cpu_servers = 1;
  summary_.colocated_servers = 2;
  summary_.nodes = 3;
  summary_.jobs = {{v1::FORMING, 4}, {v1::FAILED, 5}};
  summary_.tensors = 6;
  summary_.plan_version = 7;
  summary_.imbalance = 0.5;
  metrics_.Update(summary_, /*streams=*/8);
  const std::string text = prometheus::TextSerializer().Serialize(registry_.Collect());
  for (const char* line :
       {"addend_scheduler_members{role=\"cpu_server\"} 1",
        "addend_scheduler_members{role=\"colocated_server\"} 2",
        "addend_scheduler_members{role=\"node\"} 3", "addend_scheduler_jobs{state=\"forming\"} 4",
        "addend_scheduler_jobs{state=\"ready\"} 0", "addend_scheduler_jobs{state=\"failed\"} 5",
        "addend_scheduler_tensors 6", "addend_scheduler_plan_version 7",
        "addend_scheduler_assignment_imbalance_ratio 0.5", "addend_scheduler_watch_streams 8"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + line + "\n"));
  }
}

TEST_F(SchedulerMetricsTest, WorkOfEventsIsObserved) {
  metrics_.Planned(3, absl::Seconds(2));
  metrics_.Planned(4, absl::Seconds(1));
  metrics_.Refused();
  metrics_.Stored(absl::Milliseconds(500));
  EXPECT_THAT(Export(), HasSubstr("addend_scheduler_tensors_planned_total 7\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_scheduler_planning_seconds_count 2\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_scheduler_planning_seconds_sum 3\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_scheduler_refusals_total 1\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_scheduler_store_seconds_sum 0.5\n"));
}

TEST_F(SchedulerMetricsTest, MeasuredRatiosHaveAnOptimum) {
  summary_.by_job = {{.name = "a", .t_opt_s = 0.5, .t_opt_encoded_s = 0.25, .ratios = {0.5, 0.75}}};
  EXPECT_THAT(Export(), HasSubstr("addend_job_optimal_seconds{job_name=\"a\"} 0.5\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_job_optimal_encoded_seconds{job_name=\"a\"} 0.25\n"));
  EXPECT_THAT(Export(),
              HasSubstr("addend_job_wire_ratio{job_name=\"a\",payload=\"contribution\"} 0.5\n"));
  EXPECT_THAT(Export(),
              HasSubstr("addend_job_wire_ratio{job_name=\"a\",payload=\"result\"} 0.75\n"));
}

TEST_F(SchedulerMetricsTest, UnknownOptimumIsNotExported) {
  summary_.by_job = {{.name = "a"}};
  EXPECT_THAT(Export(), Not(HasSubstr("addend_job_optimal_seconds{")));
}

TEST_F(SchedulerMetricsTest, ServersHaveTheirSpeed) {
  summary_.cpu_speeds = {{ServerId(4), "cpu\"0", 0.25}};
  EXPECT_THAT(Export(),
              HasSubstr("addend_server_speed_ratio{hostname=\"cpu\\\"0\",server=\"4\"} 0.25\n"));
  summary_.recommended_servers = 5;
  EXPECT_THAT(Export(), HasSubstr("addend_recommended_servers 5\n"));
}

TEST_F(SchedulerMetricsTest, CountersAreThereFromTheStartAndFollowMembership) {
  EXPECT_THAT(Export(), HasSubstr("addend_members_lost_total{role=\"cpu_server\"} 0\n"));
  for (const char* reason : {"join", "drain", "loss", "pace", "declare", "encoding"}) {
    EXPECT_THAT(Export(),
                HasSubstr(std::string("addend_plan_changes_total{reason=\"") + reason + "\"} 0\n"));
  }
  summary_.lost = {.cpu_servers = 1, .colocated_servers = 2, .nodes = 3};
  summary_.plan_changes = {{PlanReason::kPace, 4}};
  summary_.events = {{"lost", 6}};
  Export();
  EXPECT_THAT(Export(), HasSubstr("addend_members_lost_total{role=\"cpu_server\"} 1\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_members_lost_total{role=\"colocated_server\"} 2\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_members_lost_total{role=\"node\"} 3\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_plan_changes_total{reason=\"pace\"} 4\n"));
  EXPECT_THAT(Export(), HasSubstr("addend_events_total{kind=\"lost\"} 6\n"));
}

}  // namespace
}  // namespace addend
