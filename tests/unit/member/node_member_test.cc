#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace addend
