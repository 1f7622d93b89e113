// A generation from its trainers' messages to their results, and its replacement.
#include "services/worker_agent/node_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/client/addend.h"
#include "services/worker_agent/agent_report.h"
#include "tests/unit/worker_agent/fake_generation.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeGenerationTest : public ::testing::Test {
 protected:
  NodeGenerationTest() { Begin(); }
  ~NodeGenerationTest() override {
    generation_->End();
    node_.loop.Settle();
    generation_.reset();
    node_.directory.DropClosed();
  }
  void Begin() {
    generation_.emplace(node_.context());
    for (uint32_t rank = 0; rank < 2; ++rank) generation_->ranks()->Enter(rank, &trainers_[rank]);
  }
  template <typename Typed>
  absl::Status Send(uint32_t rank, const Typed& message) {
    return generation_->OnMessage(&trainers_[rank], message.Encode(), UniqueFd());
  }
  void DeclareAndPlan() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(Send(rank, declare_).ok());
    }
    v1::NodeUpdate update = Update();
    v1::TensorPlan* const plan = update.add_tensors();
    plan->set_tensor_id(6);
    plan->mutable_tensor()->set_name("t");
    plan->set_partition_elements(2);
    plan->add_servers(2);
    plan->add_shards(0);
    generation_->Apply(update);
    link_ = node_.tcp.Open();
  }
  void Push() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      WriteFloats(generation_->tensors().ByNumber(1)->contributions[rank]->memory(), {1, 2});
      ASSERT_TRUE(Send(rank, push_).ok());
    }
    node_.loop.Settle();
  }
  static v1::NodeUpdate Update(v1::JobState state = v1::READY) {
    v1::NodeUpdate update;
    update.set_generation(1);
    update.set_state(state);
    update.set_plan_version(3);
    return update;
  }
  FrameHeader Result() const {
    FrameHeader header;
    header.type = FrameType::kResult;
    header.job = node_.identity.job;
    header.generation = node_.identity.generation;
    header.partition = PartitionId(TensorId(6), 0);
    header.round = Round(1);
    return header;
  }

  const ipc::DeclareMessage declare_{.shape = {2}, .text = "t"};
  const ipc::PushMessage push_{.tensor = 1, .round = 1};
  FakeNode node_;
  FakeTrainer trainers_[2] = {FakeTrainer(100), FakeTrainer(101)};
  std::optional<NodeGeneration> generation_;
  FakeLink* link_ = nullptr;
};

TEST_F(NodeGenerationTest, PushPullFromDeclarationToResult) {
  DeclareAndPlan();
  EXPECT_EQ(trainers_[0].Last<ipc::DeclaredMessage>().tensor, 1u);
  EXPECT_EQ(trainers_[0].sent.back().segments, 2u);
  Push();
  ASSERT_THAT(link_->types(), ElementsAre(FrameType::kContribution));
  EXPECT_EQ(link_->frames[0].payload, FloatBytes({2, 4}));
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  EXPECT_EQ(trainers_[1].Last<ipc::ResultMessage>().code, 0u);
}

TEST_F(NodeGenerationTest, DifferentDeclarationsFailTheTensorAlone) {
  ASSERT_TRUE(Send(0, declare_).ok());
  ASSERT_TRUE(Send(1, ipc::DeclareMessage{.op = ReduceOp::kMax, .shape = {2}, .text = "t"}).ok());
  const auto refusal = trainers_[1].Last<ipc::DeclaredMessage>();
  EXPECT_THAT(refusal.reason, HasSubstr("all ranks must declare the same"));
  EXPECT_EQ(refusal.code, uint32_t{ADDEND_ERROR_MISMATCH});
  ASSERT_TRUE(Send(0, push_).ok());
  EXPECT_EQ(trainers_[0].Last<ipc::ResultMessage>().code, uint32_t{ADDEND_ERROR_MISMATCH});
  ASSERT_TRUE(Send(0, ipc::UndeclareMessage{.tensor = push_.tensor}).ok());
  ASSERT_TRUE(Send(0, declare_).ok());
  ASSERT_TRUE(Send(1, declare_).ok());
  EXPECT_EQ(trainers_[1].Last<ipc::DeclaredMessage>().code, 0u) << "the name is free again";
  EXPECT_TRUE(generation_->state().running());
}

TEST_F(NodeGenerationTest, UndeclaredAndUnknownMessagesBreakTheProtocol) {
  EXPECT_FALSE(Send(0, push_).ok());
  EXPECT_FALSE(Send(0, ipc::UndeclareMessage{.tensor = 1}).ok());
  const ipc::Encoded unknown = ipc::EncodedAs(static_cast<ipc::Type>(99));
  EXPECT_FALSE(generation_->OnMessage(&trainers_[0], unknown, UniqueFd()).ok());
}

TEST_F(NodeGenerationTest, TrainerThatEndsFailsTheGenerationForAllNodes) {
  generation_->OnTrainerGone(&trainers_[1], absl::UnavailableError("its socket closed"));
  node_.loop.Settle();
  EXPECT_THAT(node_.reports.said, Contains("failed peer_lost: rank 3 (local rank 1 of node 1, pid "
                                           "101 on host) ended without shutdown: its socket "
                                           "closed"));
  v1::NodeUpdate update = Update(v1::FAILED);
  update.set_decided(true);
  update.set_failed_kind(TellFailure(FailureKind::kPeerLost).name);
  generation_->Apply(update);
  node_.loop.Settle();
  EXPECT_EQ(trainers_[0].Last<ipc::FailureMessage>().code, uint32_t{ADDEND_ERROR_PEER_LOST});
}

TEST_F(NodeGenerationTest, LastTrainerThatLeavesMakesTheNodeIdle) {
  for (FakeTrainer& trainer : trainers_) {
    ASSERT_TRUE(Send(static_cast<uint32_t>(trainer.local_rank), ipc::ShutdownMessage()).ok());
    EXPECT_EQ(trainer.closed, absl::OkStatus());
    generation_->OnTrainerGone(&trainer, absl::OkStatus());
  }
  EXPECT_EQ(node_.reports.said.back(), "idle");
  EXPECT_TRUE(generation_->state().running());
}

TEST_F(NodeGenerationTest, NodeWhoseTrainersHaveLeftKeepsItsLinks) {
  DeclareAndPlan();
  Push();
  for (FakeTrainer& trainer : trainers_) {
    ASSERT_TRUE(Send(static_cast<uint32_t>(trainer.local_rank), ipc::ShutdownMessage()).ok());
    generation_->OnTrainerGone(&trainer, absl::OkStatus());
  }
  node_.reports.said.clear();
  link_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_TRUE(node_.tcp.attempts.empty()) << "the generation may be over";
  node_.loop.Pass(absl::Seconds(1));
  ASSERT_FALSE(node_.tcp.attempts.empty());
  EXPECT_THAT(node_.tcp.Open()->types(), Contains(FrameType::kContribution)) << "others wait";
  EXPECT_TRUE(node_.reports.said.empty());
}

TEST_F(NodeGenerationTest, FailureOfTheJobReachesTheTrainers) {
  v1::NodeUpdate update = Update(v1::FAILED);
  update.set_reason("node 0 was lost");
  update.set_failed_kind(TellFailure(FailureKind::kPeerLost).name);
  generation_->Apply(update);
  node_.loop.Settle();
  EXPECT_TRUE(trainers_[0].sent.empty()) << "other nodes may wait for decisions";
  update.set_decided(true);
  generation_->Apply(update);
  node_.loop.Settle();
  EXPECT_EQ(trainers_[0].Last<ipc::FailureMessage>().reason, "node 0 was lost");
  EXPECT_THAT(node_.reports.said, Not(Contains(HasSubstr("failed")))) << "the scheduler knows";
}

TEST_F(NodeGenerationTest, TrainersHearOfNodesThatAreLost) {
  v1::NodeUpdate update = Update();
  update.add_lost_nodes(0);
  generation_->Apply(update);
  EXPECT_EQ(trainers_[0].Last<ipc::MembersMessage>().nodes, 1);
}

TEST_F(NodeGenerationTest, JobThatFormsAgainIsNoticedOnce) {
  EXPECT_FALSE(generation_->Apply(Update()));
  EXPECT_TRUE(generation_->Apply(Update(v1::FORMING)));
  EXPECT_FALSE(generation_->Apply(Update(v1::FORMING)));
  EXPECT_EQ(node_.counters.plan_version, PlanVersion(3));
  EXPECT_EQ(node_.counters.plan_changes, 1u);
}

TEST_F(NodeGenerationTest, NextGenerationStartsAfreshWhileOldLinksClose) {
  DeclareAndPlan();
  Push();
  FakeLink* const old = link_;
  generation_->End();
  EXPECT_EQ(trainers_[0].closed, absl::AbortedError("the generation is over"));
  generation_.reset();
  node_.identity.generation = Generation(2);
  Begin();
  FrameHeader late = Result();
  late.generation = Generation(1);
  EXPECT_TRUE(old->Deliver(late, FloatBytes({20, 40})).ok()) << "nothing takes it";
  node_.loop.Pass(absl::Minutes(1));
  EXPECT_TRUE(generation_->state().running());
  EXPECT_TRUE(generation_->tensors().by_number().empty());
  DeclareAndPlan();
  Push();
  EXPECT_EQ(link_->frames[0].header.generation, Generation(2));
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  EXPECT_EQ(trainers_[0].Last<ipc::ResultMessage>().code, 0u);
}

TEST_F(NodeGenerationTest, SchedulerThatRestartedHearsTheDeclarationsAgain) {
  ASSERT_TRUE(Send(0, declare_).ok());
  node_.reports.said.clear();
  generation_->ReportAgain();
  EXPECT_THAT(node_.reports.said, ElementsAre("declare t"));
}

TEST_F(NodeGenerationTest, SchedulerThatRestartedHearsOfUnreachableServersAgain) {
  DeclareAndPlan();
  link_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  node_.tcp.Refuse(absl::UnavailableError("refused"));
  node_.reports.said.clear();
  generation_->ReportAgain();
  EXPECT_THAT(node_.reports.said, testing::Contains("lost server 2"));
}

class AgentReportTest : public NodeGenerationTest {
 protected:
  v1::HeartbeatRequest Beat() const {
    v1::HeartbeatRequest beat;
    report_.FillBeat(*generation_, &beat);
    return beat;
  }
  const NodeContext context_ = node_.context();
  const AgentReport report_{&context_};
};

TEST_F(AgentReportTest, SnapshotShowsTrainersLinksAndOpenRounds) {
  DeclareAndPlan();
  ASSERT_TRUE(Send(0, push_).ok());
  node_.loop.Pass(absl::Seconds(7));
  const v1::GetAgentResponse response = report_.Snapshot(*generation_);
  EXPECT_EQ(response.job(), "job");
  EXPECT_EQ(response.node_rank(), 1u);
  EXPECT_EQ(response.plan_version(), 3u);
  ASSERT_EQ(response.trainers_size(), 2);
  EXPECT_EQ(response.trainers(0).pid(), 100);
  EXPECT_EQ(response.trainers(0).open_pushes(), 1u);
  ASSERT_EQ(response.links_size(), 1);
  EXPECT_EQ(response.links(0).transport(), "tcp");
  EXPECT_TRUE(response.links(0).connected());
  ASSERT_EQ(response.open_size(), 1);
  EXPECT_EQ(response.open(0).name(), "t");
  EXPECT_EQ(response.open(0).open_s(), 7.0);
  EXPECT_THAT(response.open(0).missing(), ElementsAre(1));
  EXPECT_EQ(response.open_rounds(), 1u);
  EXPECT_GT(response.shared_memory_bytes(), 0u);
}

TEST_F(AgentReportTest, HeartbeatSaysWhenNoRoundOfAFailedGenerationCanEndAnyMore) {
  DeclareAndPlan();
  Push();
  EXPECT_FALSE(Beat().decided());
  generation_->Apply(Update(v1::FAILED));
  EXPECT_FALSE(Beat().decided());
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  EXPECT_TRUE(Beat().decided());
}

TEST_F(AgentReportTest, HeartbeatHasTheBytesOfPayloads) {
  AgentCounters& counters = *context_.counters;
  counters.contribution_bytes = 40;
  counters.contribution_wire_bytes = 20;
  counters.result_bytes = 30;
  counters.result_wire_bytes = 15;
  v1::HeartbeatRequest beat;
  report_.FillBeat(*generation_, &beat);
  EXPECT_EQ(beat.wire_bytes().contribution_bytes(), 40u);
  EXPECT_EQ(beat.wire_bytes().contribution_wire_bytes(), 20u);
  EXPECT_EQ(beat.wire_bytes().result_bytes(), 30u);
  EXPECT_EQ(beat.wire_bytes().result_wire_bytes(), 15u);
}

TEST_F(AgentReportTest, LinkIsShownWithItsShard) {
  node_.directory.servers.at(2).set_shards(2);
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Send(rank, declare_).ok());
  v1::NodeUpdate update = Update();
  *update.add_tensors() = FakeGeneration::PlanOf(6, "t", 2, {2});
  update.mutable_tensors(0)->set_shards(0, 1);
  generation_->Apply(update);
  const v1::GetAgentResponse response = report_.Snapshot(*generation_);
  ASSERT_EQ(response.links_size(), 1);
  EXPECT_EQ(response.links(0).server_id(), 2u);
  EXPECT_EQ(response.links(0).shard(), 1u);
}

TEST_F(AgentReportTest, SnapshotShowsAnIdleNode) {
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Send(rank, declare_).ok());
  generation_->ranks()->Leave(&trainers_[1]);
  node_.counters.rdma_fallbacks = 3;
  const v1::GetAgentResponse response = report_.Snapshot(*generation_);
  EXPECT_EQ(response.generation(), 1u);
  EXPECT_EQ(response.tensors(), 1u);
  EXPECT_EQ(response.open_rounds(), 0u);
  EXPECT_EQ(response.open_size(), 0);
  EXPECT_EQ(response.rdma_fallbacks(), 3u);
  EXPECT_TRUE(response.trainers(0).connected());
  EXPECT_EQ(response.trainers(0).open_pushes(), 0u);
  EXPECT_EQ(response.trainers(1).local_rank(), 1u);
  EXPECT_FALSE(response.trainers(1).connected());
  EXPECT_EQ(response.trainers(1).pid(), 0);
  EXPECT_EQ(response.shared_memory_bytes(), 2 * 4096 + 2 * 4096u)
      << "a contribution of each rank, and two slots for results";
}

TEST_F(AgentReportTest, OpenRoundWithoutAPlanIsShownAsSuch) {
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Send(rank, declare_).ok());
  ASSERT_TRUE(Send(1, push_).ok());
  const v1::GetAgentResponse response = report_.Snapshot(*generation_);
  ASSERT_EQ(response.open_size(), 1);
  EXPECT_EQ(response.open(0).round(), 1u);
  EXPECT_FALSE(response.open(0).planned());
  EXPECT_THAT(response.open(0).missing(), ElementsAre(0));
}

TEST_F(AgentReportTest, SnapshotListsAThousandOpenRoundsAndCountsAll) {
  for (int i = 0; i < 1001; ++i) {
    const ipc::DeclareMessage declare{.shape = {1}, .text = absl::StrFormat("t%d", i)};
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Send(rank, declare).ok());
    const uint32_t number = trainers_[0].Last<ipc::DeclaredMessage>().tensor;
    ASSERT_TRUE(Send(0, ipc::PushMessage{.tensor = number, .round = 1}).ok());
  }
  const v1::GetAgentResponse response = report_.Snapshot(*generation_);
  EXPECT_EQ(response.open_rounds(), 1001u);
  EXPECT_EQ(response.open_size(), 1000);
}

TEST_F(AgentReportTest, LinkThatIsLostIsShownWithItsServer) {
  DeclareAndPlan();
  link_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  const v1::LinkInfo shown = report_.Snapshot(*generation_).links(0);
  EXPECT_EQ(shown.server_id(), 2u);
  EXPECT_EQ(shown.shard(), 0u);
  EXPECT_EQ(shown.peer(), "summation server 2 (b)");
  EXPECT_FALSE(shown.connected());
  v1::HeartbeatRequest beat;
  report_.FillBeat(*generation_, &beat);
  EXPECT_EQ(beat.links(), "") << "none is open";
}

TEST_F(AgentReportTest, TrafficIsTheSumOfBothNetworkTransports) {
  node_.tcp.counts.bytes_sent = 1;
  node_.tcp.counts.bytes_received = 2;
  node_.inproc.counts.local_bytes = 4;
  node_.counters.copied_bytes = 8;
  EXPECT_EQ(report_.Traffic().network_bytes_sent(), 1u);
  EXPECT_EQ(report_.Traffic().network_bytes_received(), 2u);
  EXPECT_EQ(report_.Traffic().local_bytes(), 4u);
  EXPECT_EQ(report_.Traffic().copied_bytes(), 8u);
  FakeTransport rdma(&node_.loop, &node_.identity, "rdma");
  rdma.counts.bytes_sent = 16;
  rdma.counts.bytes_received = 32;
  NodeContext with_rdma = node_.context();
  with_rdma.transports.rdma = &rdma;
  EXPECT_EQ(AgentReport(&with_rdma).Traffic().network_bytes_sent(), 17u);
  EXPECT_EQ(AgentReport(&with_rdma).Traffic().network_bytes_received(), 34u);
}

TEST_F(AgentReportTest, NumbersAreThoseOfTheCounters) {
  node_.counters.partitions_out = 5;
  node_.counters.contributions_sent = 7;
  node_.counters.direct_bytes = 11;
  node_.counters.plan_changes = 13;
  node_.counters.failures = {{"stalled", 2}};
  node_.counters.nonfinite = {17, 19};
  node_.counters.nonfinite_results = 23;
  node_.counters.spun_us = 29'000'000;
  const AgentNumbers numbers = report_.Numbers(*generation_);
  EXPECT_EQ(numbers.partitions_out, 5u);
  EXPECT_EQ(numbers.partitions_resent, 2u);
  EXPECT_EQ(numbers.direct_bytes, 11u);
  EXPECT_EQ(numbers.plan_changes, 13u);
  EXPECT_EQ(numbers.failures, node_.counters.failures);
  EXPECT_EQ(numbers.nonfinite, node_.counters.nonfinite);
  EXPECT_EQ(numbers.nonfinite_results, 23u);
  EXPECT_EQ(numbers.spun_s, 29.0);
  EXPECT_EQ(numbers.queued, 0u);
}

TEST_F(AgentReportTest, NumbersHaveTheTimesOfRoundsAndTheirParts) {
  DeclareAndPlan();
  node_.journal.SetOptimum(1);
  Push();
  node_.loop.Pass(absl::Seconds(2));
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  const AgentNumbers numbers = report_.Numbers(*generation_);
  EXPECT_EQ(numbers.rounds.seconds.count(), 1u);
  EXPECT_EQ(numbers.rounds.optimal_s, 8);
  EXPECT_EQ(numbers.bytes_out, 8u);
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    EXPECT_EQ(numbers.parts[i].count(), 1u);
    EXPECT_EQ(numbers.parts[i].sum_ns(), node_.journal.part(static_cast<Part>(i)).sum_ns());
  }
  v1::HeartbeatRequest beat;
  report_.FillBeat(*generation_, &beat);
  EXPECT_EQ(beat.generation(), 1u);
  EXPECT_EQ(beat.rounds().rounds(), 1u);
  EXPECT_EQ(beat.rounds().seconds(), 2);
  EXPECT_EQ(beat.rounds().optimal_s(), 8);
  EXPECT_EQ(beat.rounds().recent_s(), 2);
  EXPECT_EQ(beat.rounds().recent_optimal_s(), 8);
}

TEST_F(AgentReportTest, ActivityOfAJobThatIsNotReadySaysWhy) {
  node_.job = {.state = v1::FORMING, .reason = "waiting for node 0"};
  node_.counters.rounds = 3;
  v1::HeartbeatRequest beat;
  report_.FillBeat(*generation_, &beat);
  EXPECT_EQ(beat.activity(), "2 of 2 trainers connected, 3 rounds; waiting for node 0");
}

TEST_F(AgentReportTest, NumbersCountPartitionsAndTheOldestRound) {
  DeclareAndPlan();
  Push();
  node_.loop.Pass(absl::Seconds(2));
  EXPECT_EQ(report_.Numbers(*generation_).partitions_out, 1u);
  EXPECT_EQ(report_.Numbers(*generation_).oldest_open_s, 2.0);
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  const AgentNumbers numbers = report_.Numbers(*generation_);
  EXPECT_EQ(numbers.partitions_in, 1u);
  EXPECT_EQ(numbers.bytes_in, 8u);
  EXPECT_EQ(numbers.oldest_open_s, 0.0);
}

TEST_F(AgentReportTest, HeartbeatTellsActivityAndEachIncidentOnce) {
  DeclareAndPlan();
  node_.incidents.Note({"stall", "a round is open", node_.loop.TraceTime()});
  node_.loop.Pass(absl::Seconds(3));
  v1::HeartbeatRequest beat;
  report_.FillBeat(*generation_, &beat);
  EXPECT_EQ(beat.activity(), "2 of 2 trainers connected, 0 rounds");
  EXPECT_THAT(beat.links(), HasSubstr("1 tcp"));
  ASSERT_EQ(beat.incidents_size(), 1);
  EXPECT_EQ(beat.incidents(0).age_s(), 3.0);
  ASSERT_EQ(beat.paces_size(), 1);
  EXPECT_EQ(beat.paces(0).server_id(), 2u);
  v1::HeartbeatRequest next;
  report_.FillBeat(*generation_, &next);
  EXPECT_EQ(next.incidents_size(), 0);
}

TEST_F(AgentReportTest, TraceHasTheTimesOfItsJobsPartitions) {
  DeclareAndPlan();
  Push();
  ASSERT_TRUE(link_->Deliver(Result(), FloatBytes({20, 40})).ok());
  v1::TraceChunk chunk;
  report_.FillTrace(JobId(99), 1, &chunk);
  EXPECT_EQ(chunk.lives_size(), 0) << "another job";
  report_.FillTrace(node_.identity.job, 1, &chunk);
  ASSERT_EQ(chunk.lives_size(), 1);
  EXPECT_EQ(chunk.lives(0).server_id(), 2u);
  EXPECT_EQ(chunk.lives(0).tensor_id(), 6u);
  EXPECT_EQ(chunk.lives(0).round(), 1u);
  EXPECT_EQ(chunk.lives(0).bytes(), 8u);
  EXPECT_EQ(chunk.lives(0).last_rank(), 1u);
  EXPECT_EQ(chunk.lives(0).delivered(), node_.loop.TraceTime());
  EXPECT_EQ(chunk.tensors(0).tensor_id(), 6u);
  EXPECT_EQ(chunk.tensors(0).name(), "t");
}

TEST_F(AgentReportTest, TraceHasTheLastRoundsOfEachTensor) {
  DeclareAndPlan();
  for (uint64_t round = 1; round <= 3; ++round) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(Send(rank, ipc::PushMessage{.tensor = 1, .round = round}).ok());
    }
    node_.loop.Settle();
    FrameHeader result = Result();
    result.round = Round(round);
    ASSERT_TRUE(link_->Deliver(result, FloatBytes({20, 40})).ok());
  }
  const auto rounds_of = [this](uint64_t rounds) {
    v1::TraceChunk chunk;
    report_.FillTrace(node_.identity.job, rounds, &chunk);
    std::vector<uint64_t> found;
    for (const v1::PartitionLife& life : chunk.lives()) found.push_back(life.round());
    return found;
  };
  EXPECT_THAT(rounds_of(1), ElementsAre(3));
  EXPECT_THAT(rounds_of(2), ElementsAre(3, 2));
  EXPECT_THAT(rounds_of(9), ElementsAre(3, 2, 1));
}

}  // namespace
}  // namespace addend
