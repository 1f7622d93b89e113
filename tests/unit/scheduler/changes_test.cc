#include "services/scheduler/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/scheduler/record_keys.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ChangesTest : public testing::Test {
 protected:
  const absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  History history_;
  UpdateNumbers numbers_{now_};
  Changes changes_{now_, &history_, &numbers_};
  const ServerId server_{3};
  const JobId job_{7};
};

TEST_F(ChangesTest, NumbersOfUpdatesBeginAboveThoseOfAnEarlierScheduler) {
  UpdateNumbers earlier(now_ - absl::Seconds(10));
  for (int i = 0; i < 1000; ++i) earlier.Next();
  EXPECT_GT(changes_.NextNumber(), earlier.Next());
}

TEST_F(ChangesTest, SentencesAreLoggedAndNotesAreShown) {
  changes_.Say("for the log");
  changes_.Note(event_kind::kPlanned, "a", "for people too");
  EXPECT_THAT(changes_.TakeDecision().reasons, ElementsAre("for the log", "for people too"));
  ASSERT_EQ(history_.log.events().size(), 1u);
  EXPECT_EQ(history_.log.events()[0].job(), "a");
}

TEST_F(ChangesTest, ReleasesStandBeforeReservationsOfTheSameUpdate) {
  changes_.ReservationFor(server_, JobId(1))->add_reserve()->set_tensor_id(5);
  changes_.ReservationFor(server_, job_)->add_reserve()->set_tensor_id(6);
  changes_.ReleasesFor(server_, job_)->add_release_tensors(4);
  changes_.ReleasesFor(server_, job_)->add_release_tensors(2);
  const v1::ServerUpdate& update = changes_.updates().servers.at(server_);
  ASSERT_EQ(update.jobs_size(), 3);
  EXPECT_THAT(update.jobs(0).release_tensors(), ElementsAre(4, 2));
  EXPECT_EQ(update.jobs(1).job_id(), 1u);
  EXPECT_EQ(update.jobs(2).job_id(), job_.value());
}

TEST_F(ChangesTest, ReleaseOfAJobReplacesItsReservations) {
  changes_.ReservationFor(server_, job_)->add_reserve()->set_tensor_id(6);
  changes_.ReleaseJob(server_, job_, Generation(2));
  const v1::ServerUpdate& update = changes_.updates().servers.at(server_);
  ASSERT_EQ(update.jobs_size(), 1);
  EXPECT_TRUE(update.jobs(0).release_all());
  EXPECT_THAT(update.jobs(0).reserve(), IsEmpty());
}

TEST_F(ChangesTest, DeletedRecordsAreNotWritten) {
  changes_.Store(server_);
  changes_.Store(job_);
  changes_.Store(job_, NodeId(0));
  changes_.StoreAgreement(job_, 1);
  changes_.StorePlan(job_, 1);
  changes_.Delete(server_);
  changes_.Delete(job_);
  changes_.Delete(job_, NodeId(0));
  changes_.DeleteAgreement(job_, 1);
  changes_.DeletePlan(job_, 1);
  const Changes::Records& records = changes_.records();
  EXPECT_THAT(records.servers, IsEmpty());
  EXPECT_THAT(records.jobs, IsEmpty());
  EXPECT_THAT(records.nodes, IsEmpty());
  EXPECT_THAT(records.agreements, IsEmpty());
  EXPECT_THAT(records.plans, IsEmpty());
  EXPECT_THAT(records.deleted,
              ElementsAre(records::ServerKey(3), records::JobKey(7), records::NodeKey(7, 0),
                          records::AgreementKey(7, 1), records::PlanKey(7, 1)));
}

TEST_F(ChangesTest, RecordWrittenAfterItsDeletionIsWritten) {
  changes_.Delete(job_, NodeId(0));
  changes_.Store(job_, NodeId(0));
  EXPECT_THAT(changes_.records().nodes, ElementsAre(Changes::NodeKey{job_, NodeId(0)}));
  EXPECT_EQ(changes_.records().deleted.size(), 1u);
}

TEST_F(ChangesTest, UpdatesAboutAnEndedGenerationAreDropped) {
  changes_.ReservationFor(server_, job_)->add_reserve()->set_tensor_id(6);
  changes_.ReservationFor(server_, JobId(1))->add_reserve()->set_tensor_id(5);
  changes_.Broadcast(job_).set_plan_version(3);
  changes_.DropUpdatesOf(job_);
  const v1::ServerUpdate& update = changes_.updates().servers.at(server_);
  ASSERT_EQ(update.jobs_size(), 1);
  EXPECT_EQ(update.jobs(0).job_id(), 1u);
  EXPECT_THAT(changes_.updates().broadcasts, IsEmpty());
}

}  // namespace
}  // namespace addend
