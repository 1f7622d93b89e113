// Trainers before they are ranks.
#include "services/worker_agent/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "lib/client/addend.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AdmissionTest : public ::testing::Test {
 protected:
  static ipc::InitMessage InitOf(int32_t local_rank) {
    return {
        .rank = 2 + local_rank, .size = 4, .local_rank = local_rank, .local_size = 2, .job = "job"};
  }
  // Alone in its pod, which its launcher takes for a machine.
  static ipc::InitMessage PodOf(int32_t rank) {
    return {.rank = rank, .size = 4, .local_rank = 0, .local_size = 1, .job = "job"};
  }
  absl::Status Init(FakeTrainer* trainer, const ipc::InitMessage& init, bool running = true) {
    return admission_.OnInit(trainer, init, ranks_, running);
  }
  void ExpectRefused(const ipc::InitMessage& init, const std::string& why) {
    FakeTrainer trainer;
    EXPECT_TRUE(Init(&trainer, init).ok());
    ASSERT_THAT(trainer.types(), ElementsAre(ipc::Type::kInitReply));
    const auto reply = trainer.Last<ipc::InitReplyMessage>();
    EXPECT_NE(reply.code, 0u);
    EXPECT_THAT(reply.reason, HasSubstr(why));
  }

  FakeNode node_;
  LocalRanks ranks_{NodeId(1), 2, "host"};
  Admission admission_{node_.context()};
  FakeTrainer first_{11};
  FakeTrainer second_{12};
};

TEST_F(AdmissionTest, TrainersWaitForTheJobAndHearItsProgress) {
  node_.job = {.state = v1::FORMING, .reason = "waiting for node 0"};
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  EXPECT_THAT(node_.reports.said, ElementsAre("trainers 1"));
  EXPECT_THAT(admission_.AdmitWaiting(&ranks_), IsEmpty());
  EXPECT_THAT(first_.types(), ElementsAre(ipc::Type::kProgress));
  EXPECT_EQ(first_.Last<ipc::ProgressMessage>().text, "waiting for node 0");
  node_.job = {.state = v1::READY, .reason = ""};
  EXPECT_THAT(admission_.AdmitWaiting(&ranks_), ElementsAre(&first_));
  EXPECT_EQ(ranks_.at(0), &first_);
  const auto reply = first_.Last<ipc::InitReplyMessage>();
  EXPECT_EQ(reply.rank, 2);
  EXPECT_EQ(reply.node_rank, 1);
  EXPECT_EQ(reply.num_nodes, 2);
}

TEST_F(AdmissionTest, NextRunWaitsForTheEndOfTheFormerRun) {
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  admission_.AdmitWaiting(&ranks_);
  ranks_.Leave(&first_);
  ASSERT_TRUE(Init(&second_, InitOf(0)).ok());
  EXPECT_THAT(admission_.AdmitWaiting(&ranks_), IsEmpty());
  EXPECT_EQ(second_.Last<ipc::ProgressMessage>().text,
            "waiting for the former run to end on all nodes");
}

TEST_F(AdmissionTest, RefusesTrainersThatDoNotFit) {
  ipc::InitMessage init = InitOf(0);
  init.version = 9999;
  ExpectRefused(init, "libaddend speaks version 9999");
  init = InitOf(0);
  init.job = "other";
  ExpectRefused(init, "serves job 'job', not job 'other'");
  init = InitOf(0);
  init.local_size = 3;
  ExpectRefused(init, "LOCAL_WORLD_SIZE=3 does not fit");
  init = InitOf(0);
  init.rank = 0;
  ExpectRefused(init, "RANK=0 does not fit this agent, whose node 1 has ranks 2 to 3");
  init = InitOf(0);
  init.rank = 3;
  ExpectRefused(init, "RANK=3, WORLD_SIZE=4, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=2 does not fit");
  init = InitOf(0);
  init.size = 6;
  ExpectRefused(init, "whose job has 4 ranks (--num-nodes=2, --local-size=2)");
  for (const int32_t rank : {-2, 4}) {
    init = InitOf(0);
    init.rank = rank;
    ExpectRefused(init, "does not fit this agent, whose job has 4 ranks");
  }
  EXPECT_EQ(admission_.refused(), 8u);
}

TEST_F(AdmissionTest, PodsOfTheMachineAreRanksOfTheNodeInTheirOrder) {
  for (const int32_t rank : {3, 2}) {
    FakeTrainer& trainer = rank == 3 ? second_ : first_;
    ASSERT_TRUE(Init(&trainer, PodOf(rank)).ok());
  }
  EXPECT_THAT(admission_.AdmitWaiting(&ranks_), ElementsAre(&second_, &first_));
  EXPECT_EQ(ranks_.at(0), &first_);
  EXPECT_EQ(ranks_.at(1), &second_);
  const auto reply = second_.Last<ipc::InitReplyMessage>();
  EXPECT_EQ(reply.rank, 3);
  EXPECT_EQ(reply.local_rank, 1);
  EXPECT_EQ(reply.local_size, 2);
  EXPECT_EQ(reply.num_nodes, 2);
  EXPECT_TRUE(second_.launched_apart);
  ExpectRefused(PodOf(2), "local rank 0 of node 1 is already connected");
  ExpectRefused(PodOf(1), "RANK=1 does not fit this agent, whose node 1 has ranks 2 to 3");
}

TEST_F(AdmissionTest, FirstTrainerThatFitsSaysTheNode) {
  node_.options.node = std::nullopt;
  Admission admission(node_.context());
  FakeTrainer stranger;
  ipc::InitMessage init = PodOf(3);
  init.size = 6;
  ASSERT_TRUE(admission.OnInit(&stranger, init, ranks_, /*running=*/true).ok());
  EXPECT_EQ(admission.node(), std::nullopt);
  ASSERT_TRUE(admission.OnInit(&first_, PodOf(3), ranks_, /*running=*/true).ok());
  EXPECT_EQ(admission.node(), NodeId(1));
  EXPECT_TRUE(admission.anyone_waits());
  ASSERT_TRUE(admission.OnInit(&second_, PodOf(0), ranks_, /*running=*/true).ok());
  EXPECT_THAT(second_.Last<ipc::InitReplyMessage>().reason,
              HasSubstr("has ranks 2 to 3 (the first trainer said so: --node-rank=trainers)"));
}

// Where trainers say the node.
class EarlyTrainerTest : public AdmissionTest {
 protected:
  // Both ranks of node 1 run.
  EarlyTrainerTest() {
    node_.options.node = std::nullopt;
    by_trainers_.emplace(node_.context());
    Come(&first_, 2);
    Come(&second_, 3);
    by_trainers_->AdmitWaiting(&ranks_);
  }
  void Come(FakeTrainer* trainer, int32_t rank) {
    EXPECT_TRUE(by_trainers_->OnInit(trainer, PodOf(rank), ranks_, /*running=*/true).ok());
  }
  void ExpectRefused(const FakeTrainer& trainer, const std::string& why) {
    ASSERT_FALSE(trainer.sent.empty());
    ASSERT_EQ(trainer.types().back(), ipc::Type::kInitReply);
    EXPECT_THAT(trainer.Last<ipc::InitReplyMessage>().reason, HasSubstr(why));
  }

  static constexpr char kStray[] = "RANK=0 does not fit this agent, whose node 1 has ranks 2 to 3";
  std::optional<Admission> by_trainers_;
  FakeTrainer early_{13};
};

TEST_F(EarlyTrainerTest, OfAnotherNodeIsRefusedWhileTheRunGoesOn) {
  Come(&early_, 0);
  ExpectRefused(early_, kStray);
}

TEST_F(EarlyTrainerTest, WaitsForTheFormerRunToEnd) {
  ranks_.Leave(&first_);
  Come(&early_, 0);
  EXPECT_THAT(early_.types(), ElementsAre(ipc::Type::kProgress));
  EXPECT_EQ(early_.Last<ipc::ProgressMessage>().text,
            "waiting for the former run to end on all nodes");
  EXPECT_FALSE(by_trainers_->anyone_waits()) << "for this node, which can be given up";
  EXPECT_TRUE(
      absl::IsInvalidArgument(by_trainers_->OnInit(&early_, PodOf(0), ranks_, /*running=*/true)));
}

TEST_F(EarlyTrainerTest, WaitsForTheEndOfARunThatHasFailed) {
  EXPECT_TRUE(by_trainers_->OnInit(&early_, PodOf(0), ranks_, /*running=*/false).ok());
  EXPECT_THAT(early_.types(), ElementsAre(ipc::Type::kProgress));
}

TEST_F(EarlyTrainerTest, WaitsWhileTheNextGenerationHasNoTrainers) {
  LocalRanks next(NodeId(1), 2, "host");
  EXPECT_TRUE(by_trainers_->OnInit(&early_, PodOf(0), next, /*running=*/true).ok());
  EXPECT_THAT(early_.types(), ElementsAre(ipc::Type::kProgress));
  by_trainers_->RefuseStalled(next);
  EXPECT_THAT(early_.types(), ElementsAre(ipc::Type::kProgress, ipc::Type::kProgress))
      << "it hears again and again what it waits for";
}

TEST_F(EarlyTrainerTest, IsRefusedWhenTheNodeIsTakenAgain) {
  ranks_.Leave(&first_);
  Come(&early_, 0);
  FakeTrainer again(14);
  Come(&again, 2);
  ExpectRefused(early_, kStray);
  FakeTrainer late(15);
  Come(&late, 0);
  ExpectRefused(late, kStray);
}

TEST_F(EarlyTrainerTest, WaitsNoLongerThanForARound) {
  ranks_.Leave(&first_);
  Come(&early_, 0);
  node_.loop.Pass(absl::Seconds(300));
  by_trainers_->RefuseStalled(ranks_);
  ExpectRefused(early_, "within --stall-timeout=5m: waiting for the former run to end");
}

TEST_F(EarlyTrainerTest, IsForgottenWhenItGoesOrIsLetGo) {
  ranks_.Leave(&first_);
  Come(&early_, 0);
  by_trainers_->OnTrainerGone(&early_);
  Come(&early_, 0);
  by_trainers_->LetEarlyGo();
  by_trainers_->RefuseAll(absl::UnavailableError("the agent was stopped"), /*told=*/0);
  EXPECT_THAT(early_.types(), ElementsAre(ipc::Type::kProgress, ipc::Type::kProgress));
}

TEST_F(EarlyTrainerTest, HearsThatTheProcessEnds) {
  ranks_.Leave(&first_);
  Come(&early_, 0);
  by_trainers_->RefuseAll(absl::UnavailableError("the agent was stopped"), /*told=*/0);
  ExpectRefused(early_, "the agent was stopped");
}

TEST_F(EarlyTrainerTest, IsOneOfAtMostANodesRanks) {
  ranks_.Leave(&first_);
  FakeTrainer others[2] = {FakeTrainer(14), FakeTrainer(15)};
  for (FakeTrainer& other : others) Come(&other, 1);
  Come(&early_, 0);
  ExpectRefused(early_, kStray);
}

TEST_F(AdmissionTest, RefusesASecondTrainerOfARank) {
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  ExpectRefused(InitOf(0), "local rank 0 of node 1 is already connected");
  admission_.AdmitWaiting(&ranks_);
  ExpectRefused(InitOf(0), "local rank 0 of node 1 is already connected");
  EXPECT_TRUE(Init(&second_, InitOf(0), /*running=*/false).ok());
  EXPECT_THAT(second_.sent, IsEmpty()) << "it waits for the next generation";
}

TEST_F(AdmissionTest, SecondInitBreaksTheProtocol) {
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  admission_.AdmitWaiting(&ranks_);
  EXPECT_EQ(Init(&first_, InitOf(0)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdmissionTest, TrainersWaitNoLongerThanForARound) {
  node_.job = {.state = v1::FORMING, .reason = "waiting for node 0"};
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  node_.loop.Pass(absl::Seconds(100));
  ASSERT_TRUE(Init(&second_, InitOf(1)).ok());
  node_.loop.Pass(absl::Seconds(200));
  admission_.RefuseStalled(ranks_);
  const auto reply = first_.Last<ipc::InitReplyMessage>();
  EXPECT_EQ(reply.code, uint32_t{ADDEND_ERROR_STALLED});
  EXPECT_THAT(reply.reason,
              HasSubstr("has not begun within --stall-timeout=5m: waiting for node 0"));
  EXPECT_THAT(second_.sent, IsEmpty());
  EXPECT_THAT(node_.reports.said, ElementsAre("trainers 1", "trainers 2", "trainers 1"));
}

TEST_F(AdmissionTest, TrainerThatIsGoneWaitsNoLonger) {
  node_.job.state = v1::FORMING;
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  admission_.OnTrainerGone(&first_);
  admission_.OnTrainerGone(&second_);
  EXPECT_THAT(node_.reports.said, ElementsAre("trainers 1", "trainers 0"));
  node_.job.state = v1::READY;
  EXPECT_THAT(admission_.AdmitWaiting(&ranks_), IsEmpty());
}

TEST_F(AdmissionTest, ProcessThatEndsRefusesAllTrainers) {
  ASSERT_TRUE(Init(&first_, InitOf(0)).ok());
  admission_.RefuseAll(absl::UnavailableError("the agent was stopped"), /*told=*/1);
  EXPECT_EQ(first_.Last<ipc::InitReplyMessage>().reason, "the agent was stopped");
  ExpectRefused(InitOf(1), "the agent was stopped");
  EXPECT_EQ(admission_.refused(), 3u);
}

TEST_F(AdmissionTest, RefusalsForOtherReasonsAreNotAmongThoseOfTheEnd) {
  ipc::InitMessage stray = InitOf(0);
  stray.rank = 0;
  ExpectRefused(stray, "RANK=0 does not fit");
  admission_.RefuseAll(absl::UnavailableError("the agent was stopped"), /*told=*/1);
  EXPECT_EQ(admission_.refused(), 1u);
}

}  // namespace
}  // namespace addend
