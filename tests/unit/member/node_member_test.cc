#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>

#include "absl/time/clock.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/member/member.h"
#include "tests/unit/member/fake_scheduler.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Generation kFirst(1);

class NodeMemberTest : public ::testing::Test {
 protected:
  NodeMemberTest() {
    v1::RegisterNodeRequest request;
    request.set_job("train");
    request.set_node_rank(3);
    request.set_incarnation(77);
    auto joined = NodeMember::Join(
        {.scheduler = scheduler_.address(),
         .connect_timeout = absl::Seconds(30),
         .give_up = nullptr,
         .on_fatal = [this](absl::Status status) { fatal_.set_value(std::move(status)); }},
        request,
        [this](const v1::NodeUpdate& update) {
          if (update.generation() == 7) updated_.set_value();
        },
        [](v1::HeartbeatRequest*) {});
    member_ = *std::move(joined);
  }

  void Declare(const std::string& name) {
    v1::TensorDescriptor tensor;
    tensor.set_name(name);
    member_->Send(report::Declare(kFirst, tensor, 1));
  }

  FakeScheduler scheduler_;
  std::promise<absl::Status> fatal_;
  std::promise<void> updated_;
  std::unique_ptr<NodeMember> member_;
};

constexpr std::chrono::seconds kPatience(10);

TEST_F(NodeMemberTest, KnowsItsRegistration) {
  EXPECT_EQ(member_->registration().job_id(), 9u);
  EXPECT_EQ(member_->registration().token().secret(), "token");
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 1));
  const v1::MemberId id = scheduler_.last_heartbeat().member();
  EXPECT_EQ(id.job_id(), 9u);
  EXPECT_EQ(id.node_rank(), 3u);
  EXPECT_EQ(id.incarnation(), 77u);
  EXPECT_EQ(id.key().size(), 32u) << "others cannot speak for it";
}

TEST_F(NodeMemberTest, HearsUpdates) {
  v1::NodeUpdate update;
  update.set_generation(7);
  scheduler_.Push(update);
  EXPECT_EQ(updated_.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(NodeMemberTest, ReportsArriveInOrderAndDeclarationsTogether) {
  scheduler_.Answer("Declare", absl::UnavailableError("busy"));
  Declare("a");
  ASSERT_TRUE(scheduler_.WaitForCalls("Declare", 1));  // "a" is on its way, so the others gather
  Declare("b");
  Declare("c");
  member_->Send(report::Undeclare(kFirst, "a"));
  member_->Send(report::Undeclare(kFirst, "b"));
  Declare("d");
  member_->Send(report::Trainers(kFirst, 2));
  member_->Send(report::Idle(kFirst));
  member_->Send(report::Failed(kFirst, MakeFailure(FailureKind::kPeerLost, "rank 2 died")));
  EXPECT_FALSE(member_->Flush(absl::Milliseconds(10)));
  scheduler_.Answer("Declare", absl::OkStatus());
  EXPECT_TRUE(member_->Flush(absl::Seconds(30)));
  EXPECT_THAT(scheduler_.reports(), ElementsAre("Declare a", "Declare b c", "Undeclare a b",
                                                "Declare d", "ReportTrainers 2", "ReportIdle",
                                                "ReportFailure rank 2 died peer_lost 75"));
}

TEST_F(NodeMemberTest, AReportSurvivesARestartOfTheScheduler) {
  scheduler_.Stop();
  Declare("a");
  scheduler_.Start();
  ASSERT_TRUE(scheduler_.WaitForReports(1));
  EXPECT_THAT(scheduler_.reports(), ElementsAre("Declare a"));
}

TEST_F(NodeMemberTest, AForgottenNodeRegistersBeforeItReports) {
  scheduler_.SetLease(1000);
  scheduler_.AnswerOnce("Declare", absl::NotFoundError("who?"));
  Declare("a");
  ASSERT_TRUE(scheduler_.WaitForReports(1));
  EXPECT_GE(scheduler_.calls("RegisterNode"), 2);
}

TEST_F(NodeMemberTest, AReportOfAGenerationThatIsOverIsDropped) {
  scheduler_.AnswerOnce("Declare", absl::FailedPreconditionError("generation 1 is over"));
  Declare("a");
  EXPECT_TRUE(member_->Flush(absl::Seconds(30)));
  EXPECT_THAT(scheduler_.reports(), ElementsAre());
}

TEST_F(NodeMemberTest, ARefusedDeclarationFailsTheGeneration) {
  scheduler_.AnswerOnce("Declare", absl::InvalidArgumentError("bad name"));
  Declare("a");
  EXPECT_TRUE(member_->Flush(absl::Seconds(30)));
  EXPECT_THAT(scheduler_.reports(), ElementsAre("ReportFailure bad name internal 64"));
}

TEST_F(NodeMemberTest, ASchedulerThatLostTheJobIsFatal) {
  scheduler_.SetJobId(10);
  scheduler_.AnswerOnce("Heartbeat", absl::NotFoundError("who?"));
  auto fatal = fatal_.get_future();
  ASSERT_EQ(fatal.wait_for(kPatience), std::future_status::ready);
  const absl::Status status = fatal.get();
  EXPECT_THAT(Message(status), HasSubstr("job 'train' as job 10, not as 9 as before"));
  EXPECT_EQ(KindOf(status), FailureKind::kTemporary);
}

TEST_F(NodeMemberTest, LeavingWithUndeliverableReportsIsQuick) {
  scheduler_.Answer("Declare", absl::UnavailableError("busy"));
  Declare("a");
  ASSERT_TRUE(scheduler_.WaitForCalls("Declare", 1));
  const absl::Time start = absl::Now();
  member_->Leave();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));  // a hang, not slowness
  EXPECT_EQ(scheduler_.left().node_rank(), 3u);
}

// An agent: a colocated server and its node.
class ColocatedTest : public ::testing::Test {
 protected:
  MemberOptions Options() {
    return {.scheduler = scheduler_.address(),
            .connect_timeout = absl::Seconds(30),
            .give_up = nullptr,
            .on_fatal = [](const absl::Status& why) { ADD_FAILURE() << why; }};
  }
  void Join() {
    server_ = *ServerMember::Join(
        Options(), {}, [](const v1::ServerUpdate&) { return v1::AckReservationRequest(); },
        [this](v1::HeartbeatRequest* beat) {
          beat->set_activity("sums");
          if (incident_.exchange(false)) beat->add_incidents()->set_text("it has happened");
        });
    node_ = *NodeMember::Join(
        Options(), {}, [](const v1::NodeUpdate&) {},
        [](v1::HeartbeatRequest* beat) { beat->set_activity("trains"); }, server_.get());
  }
  // Those of the server itself.
  int OwnBeats() {
    const auto all = scheduler_.heartbeats();
    return static_cast<int>(std::count_if(
        all.begin(), all.end(), [](const auto& beat) { return beat.member().server_id() != 0; }));
  }

  FakeScheduler scheduler_;
  std::atomic<bool> incident_{false};
  std::unique_ptr<ServerMember> server_;
  std::unique_ptr<NodeMember> node_;  // first, because it carries the server's heartbeats
};

TEST_F(ColocatedTest, HeartbeatOfTheNodeCarriesThatOfItsServer) {
  incident_ = true;
  Join();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 3));
  const int before = OwnBeats();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 13));
  EXPECT_LE(OwnBeats(), before + 2) << "there is one call for both";
  const v1::HeartbeatRequest beat = scheduler_.last_heartbeat();
  EXPECT_EQ(beat.activity(), "trains");
  EXPECT_EQ(beat.colocated().activity(), "sums");
  EXPECT_EQ(beat.colocated().member().server_id(), 5u);
  const auto all = scheduler_.heartbeats();
  const auto told = std::count_if(all.begin(), all.end(),
                                  [](const auto& one) { return one.incidents_size() == 1; });
  EXPECT_EQ(told, 1) << "an incident of the server is told once";
}

TEST_F(ColocatedTest, ServerKeepsItsLeaseItselfIfTheSchedulerDoesNotTakeWhatTheNodeCarries) {
  scheduler_.SetTakesColocated(false);
  Join();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 10));
  EXPECT_GE(OwnBeats(), 3);
}

TEST_F(ColocatedTest, ServerKeepsItsLeaseItselfWhenTheNodeHasLeft) {
  Join();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", 4));
  node_->Leave();
  const int before = OwnBeats();
  ASSERT_TRUE(scheduler_.WaitForCalls("Heartbeat", scheduler_.calls("Heartbeat") + 2));
  EXPECT_GE(OwnBeats(), before + 2);
}

TEST_F(ColocatedTest, ServerFollowsItsNodeToTheSchedulerThatTakesItsHeartbeats) {
  FakeScheduler second;
  MemberOptions options = Options();
  options.scheduler += "," + second.address();
  server_ = *ServerMember::Join(
      options, {}, [](const v1::ServerUpdate&) { return v1::AckReservationRequest(); },
      [](v1::HeartbeatRequest*) {});
  ASSERT_TRUE(scheduler_.WaitForCalls("WatchServer", 1));
  server_->WasCarried(/*scheduler=*/1);
  EXPECT_TRUE(second.WaitForCalls("WatchServer", 1)) << "its watch moves there";
}

}  // namespace
}  // namespace addend
