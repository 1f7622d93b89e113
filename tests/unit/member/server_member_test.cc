#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/member/member.h"
#include "tests/unit/member/fake_scheduler.h"

namespace addend {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ServerMemberTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ServerMember>> Join(absl::Duration timeout = absl::Seconds(30)) {
    return ServerMember::Join(
        {.scheduler = scheduler_.address(),
         .connect_timeout = timeout,
         .give_up = give_up_,
         .on_fatal = [this](absl::Status status) { fatal_.set_value(std::move(status)); }},
        request_,
        [](const v1::ServerUpdate& update) {
          v1::AckReservationRequest ack;
          ack.set_free_bytes(update.jobs_size());
          return ack;
        },
        [this](v1::HeartbeatRequest* beat) {
          beat->set_activity("summing");
          if (incident_.exchange(false)) beat->add_incidents()->set_text("it has happened");
        });
  }

  void JoinWell() {
    request_.set_incarnation(77);
    auto joined = Join();
    ASSERT_TRUE(joined.ok()) << joined.status();
    member_ = *std::move(joined);
  }

  absl::Status Fatal() {
    auto future = fatal_.get_future();
    if (future.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      return absl::OkStatus();
    }
    return future.get();
  }

  FakeScheduler scheduler_;
  v1::RegisterServerRequest request_;
  std::atomic<bool> incident_{false};  // to be told in the next heartbeat
  std::function<bool()> give_up_;
  std::promise<absl::Status> fatal_;
  std::unique_ptr<ServerMember> member_;
};

TEST_F(ServerMemberTest, JoinsAndKeepsItsLease) {
  JoinWell();
  EXPECT_EQ(member_->server_id(), 5u);
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 2));
  const v1::HeartbeatRequest beat = scheduler_.last_heartbeat();
  EXPECT_EQ(beat.member().server_id(), 5u);
  EXPECT_EQ(beat.member().incarnation(), 77u);
  EXPECT_EQ(beat.activity(), "summing");
}

TEST_F(ServerMemberTest, RepeatsAnIncidentUntilAHeartbeatIsAnswered) {
  scheduler_.AnswerOnce("Heartbeat", absl::UnavailableError("not now"));
  incident_ = true;
  JoinWell();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 3));
  const auto beats = scheduler_.heartbeats();
  ASSERT_EQ(beats[0].incidents_size(), 1);
  ASSERT_EQ(beats[1].incidents_size(), 1);
  EXPECT_EQ(beats[1].incidents(0).text(), "it has happened");
  EXPECT_GT(beats[1].incidents(0).age_s(), beats[0].incidents(0).age_s());
  EXPECT_EQ(beats[2].incidents_size(), 0);
}

TEST_F(ServerMemberTest, AnswersEveryUpdate) {
  JoinWell();
  v1::ServerUpdate update;
  update.set_update_id(42);
  update.add_jobs();
  scheduler_.Push(update);
  ASSERT_TRUE(scheduler_.WaitForCalls("AckReservation", 1));
  const v1::AckReservationRequest ack = scheduler_.last_ack();
  EXPECT_EQ(ack.update_id(), 42u);
  EXPECT_EQ(ack.free_bytes(), 1u);
  EXPECT_EQ(ack.member().server_id(), 5u);
}

// A server's update has its partitions of all jobs.
TEST_F(ServerMemberTest, AnUpdateMayBeLargerThanOtherAnswers) {
  JoinWell();
  v1::ServerUpdate update;
  update.set_update_id(42);
  update.add_jobs()->set_job_name(std::string(kMaxAnswerBytes + 1, 'j'));
  scheduler_.Push(update);
  ASSERT_TRUE(scheduler_.WaitForCalls("AckReservation", 1));
  EXPECT_EQ(scheduler_.calls("WatchServer"), 1);
}

TEST_F(ServerMemberTest, ALostAcknowledgementIsRepeatedWithTheNextWatch) {
  scheduler_.AnswerOnce("AckReservation", absl::UnavailableError("lost"));
  JoinWell();
  scheduler_.Push(v1::ServerUpdate());
  EXPECT_TRUE(scheduler_.WaitForCalls("AckReservation", 2));
  EXPECT_GE(scheduler_.calls("WatchServer"), 2);
}

TEST_F(ServerMemberTest, ABrokenWatchIsOpenedAgain) {
  JoinWell();
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 1));
  scheduler_.BreakWatches(absl::UnavailableError("broken"));
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 2));
  scheduler_.BreakWatches(absl::OkStatus());
  EXPECT_TRUE(scheduler_.WaitForCalls("WatchServer", 3));
  EXPECT_EQ(scheduler_.calls("RegisterServer"), 1);
}

TEST_F(ServerMemberTest, AForgottenMemberRegistersAgainAndWatchesAnew) {
  JoinWell();
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 1));
  scheduler_.SetServerId(6);
  scheduler_.AnswerOnce("Heartbeat", absl::NotFoundError("who?"));
  ASSERT_TRUE(scheduler_.WaitForCalls("RegisterServer", 2));
  EXPECT_EQ(scheduler_.last_incarnation(), 77u);
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 2));
  EXPECT_EQ(member_->server_id(), 6u);
}

TEST_F(ServerMemberTest, AWatchOfAForgottenMemberRegistersAgain) {
  scheduler_.SetLease(1000);
  JoinWell();
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 1));
  scheduler_.BreakWatches(absl::NotFoundError("who?"));
  EXPECT_TRUE(scheduler_.WaitForCalls("WatchServer", 2));
  EXPECT_EQ(scheduler_.calls("RegisterServer"), 2);
}

TEST_F(ServerMemberTest, ARefusedReturnIsFatal) {
  JoinWell();
  scheduler_.Answer("RegisterServer", MakeFailure(FailureKind::kVersion, "too old"));
  scheduler_.Answer("Heartbeat", absl::NotFoundError("who?"));
  const absl::Status fatal = Fatal();
  EXPECT_EQ(Message(fatal), "too old");
  EXPECT_EQ(KindOf(fatal), FailureKind::kVersion);
}

TEST_F(ServerMemberTest, AColocatedServerCannotComeBackAsAnother) {
  request_.set_colocated_job("train");
  JoinWell();
  scheduler_.SetServerId(6);
  scheduler_.AnswerOnce("Heartbeat", absl::NotFoundError("who?"));
  EXPECT_EQ(KindOf(Fatal()), FailureKind::kTemporary);
}

TEST_F(ServerMemberTest, AMemberSurvivesARestartOfTheScheduler) {
  JoinWell();
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 1));
  scheduler_.Stop();
  scheduler_.Start();
  EXPECT_TRUE(scheduler_.WaitForCalls("WatchServer", 2));
  EXPECT_TRUE(scheduler_.WaitForCalls("Heartbeat", scheduler_.calls("Heartbeat") + 1));
}

TEST_F(ServerMemberTest, JoinWaitsForTheScheduler) {
  scheduler_.Stop();
  std::thread later([this] { scheduler_.Start(); });
  EXPECT_TRUE(Join().ok());
  later.join();
}

TEST_F(ServerMemberTest, JoinGivesUpAfterTheTimeout) {
  scheduler_.Stop();
  const absl::Status status = Join(absl::Milliseconds(300)).status();
  EXPECT_EQ(KindOf(status), FailureKind::kUnreachable);
  EXPECT_THAT(Message(status), MatchesRegex("scheduler 127.0.0.1:[0-9]+ has not answered for 0 s "
                                            ".connection refused.; check .*"));
}

TEST_F(ServerMemberTest, JoinCanBeGivenUp) {
  scheduler_.Stop();
  give_up_ = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(Join().status()));
}

TEST_F(ServerMemberTest, ARefusedJoinReturnsAtOnce) {
  scheduler_.Answer("RegisterServer", absl::InvalidArgumentError("no endpoints"));
  const absl::Status status = Join().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status), "no endpoints");
  EXPECT_EQ(scheduler_.calls("RegisterServer"), 1);
  scheduler_.Answer("RegisterServer", absl::UnimplementedError(""));
  EXPECT_THAT(Message(Join().status()), HasSubstr("is not an Addend scheduler"));
}

// A member that is started again comes before the scheduler has heard of the end of the former.
TEST_F(ServerMemberTest, JoinTriesAgainForAMomentWhereAnotherHasThePlace) {
  scheduler_.AnswerOnce("RegisterServer", absl::AlreadyExistsError("the address is taken"));
  ASSERT_TRUE(Join().ok());
  EXPECT_EQ(scheduler_.calls("RegisterServer"), 2);
}

TEST_F(ServerMemberTest, JoinIsRefusedWhereAnotherKeepsThePlace) {
  scheduler_.Answer("RegisterServer", absl::AlreadyExistsError("the address is taken"));
  const auto member = Join();
  EXPECT_EQ(member.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_GE(scheduler_.calls("RegisterServer"), 2);
}

TEST_F(ServerMemberTest, LeavingNotifiesTheSchedulerOnce) {
  JoinWell();
  member_->Leave();
  member_->Leave();
  EXPECT_EQ(scheduler_.calls("Leave"), 1);
  EXPECT_EQ(scheduler_.left().server_id(), 5u);
}

TEST_F(ServerMemberTest, TheDestructorDoesNotNotifyTheScheduler) {
  JoinWell();
  member_.reset();
  EXPECT_EQ(scheduler_.calls("Leave"), 0);
}

TEST_F(ServerMemberTest, LeavingADeadSchedulerIsQuick) {
  JoinWell();
  scheduler_.Stop();
  const absl::Time start = absl::Now();
  member_->Leave();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));  // a hang, not slowness
}

}  // namespace
}  // namespace addend
