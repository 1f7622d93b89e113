// The engine over real links: sums, recovery, admission of nodes, and refusals.
#include "lib/summation/engine.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include "tests/unit/summation/engine_fixture.h"

namespace addend {
namespace {

TEST_F(EngineTest, SumsInNodeOrderWhateverTheOrderOfArrival) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  // (1e8 + -1e8) + 1 is 1; any other order gives 0 or 1.
  const float values[] = {1e8f, -1e8f, 1.0f};
  nodes[2]->Push({values[2]}, 1);
  nodes[1]->Push({values[1]}, 1);
  nodes[0]->Push({values[0]}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{1.0f});
  nodes[0]->Push({1.0f}, 2);
  nodes[2]->Push({-1e8f}, 2);
  nodes[1]->Push({1e8f}, 2);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(2), std::vector<float>{0.0f});
}

TEST_F(EngineTest, EarlyContributionsWithoutMemoryAreRequestedAgain) {
  constexpr uint64_t kElements = 1024;
  const uint64_t limit = 2 * kElements * sizeof(float) + PartitionTableBytes(2);
  Start(2, limit);
  ASSERT_TRUE(Reserve(kElements, kElements).ok());
  EXPECT_EQ(engine_->free_bytes(), 0u);
  Node* first = Join(0);
  Node* second = Join(1);
  ASSERT_TRUE(first->WaitForHello());
  ASSERT_TRUE(second->WaitForHello());
  const std::vector<float> ones(kElements, 1.0f);
  second->Push(ones, 1);  // early, and there is no room
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  first->Push(ones, 1);
  ASSERT_TRUE(second->WaitForSendAgain());
  second->Push(ones, 1);
  EXPECT_EQ(first->WaitForResult(1), std::vector<float>(kElements, 2.0f));
  EXPECT_EQ(second->WaitForResult(1), std::vector<float>(kElements, 2.0f));
  EXPECT_EQ(engine_->stats().early_dropped, 1u);
  EXPECT_LE(engine_->stats().memory_peak_bytes, limit);
}

TEST_F(EngineTest, RepeatedContributionGetsTheResultAgain) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({3.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  node->results.clear();
  node->Push({3.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, LaterOwnerLearnsTheNewestRoundFromTheNodes) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({100.0f}, 5);  // before the reports: dropped, and sent again later
  nodes[0]->Report(4, 9);       // of another plan
  nodes[0]->Report(5, 4);
  nodes[1]->Report(5, 3);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForRecovered(), Round(4));
  ASSERT_TRUE(nodes[0]->WaitForRequest(4));
  nodes[0]->Supply({42.0f}, 4);
  EXPECT_EQ(nodes[1]->WaitForResult(4), std::vector<float>{42.0f});
  EXPECT_EQ(nodes[1]->wanted, Round()) << "it has nothing to give";
  for (Node* node : nodes) node->version = 5;
  nodes[1]->Push({2.0f}, 5);
  nodes[0]->Push({1.0f}, 5);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(5), std::vector<float>{3.0f});
}

TEST_F(EngineTest, RecoveringOwnerSendsTheResultThatItHasSealedItself) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  for (Node* node : nodes) node->Push({1.5f}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  nodes[0]->Push({7.0f}, 2);  // forgotten by the recovery
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  const uint64_t reserved = engine_->stats().memory_used_bytes;
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/9).ok());
  EXPECT_EQ(engine_->stats().memory_used_bytes, reserved) << "it is held already";
  nodes[1]->results.clear();
  nodes[0]->Report(9, 1);
  nodes[1]->Report(9, 0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0f});
  for (Node* node : nodes) node->version = 9;
  nodes[0]->Push({1.0f}, 2);
  nodes[1]->Push({2.0f}, 2);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(2), std::vector<float>{3.0f});
}

TEST_F(EngineTest, OwnerHandsOverWhenTheOpenRoundIsSealed) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({1.0f}, 1);
  while (engine_->RollCall(kJob, 10).empty()) {
  }
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(6));
  nodes[1]->Push({2.0f}, 1);
  for (Node* node : nodes) {
    EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
    EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  }
  // A node that has not heard of the hand-over, and a node that has lost its result.
  nodes[0]->moved.reset();
  nodes[0]->Push({1.0f}, 2);
  EXPECT_EQ(nodes[0]->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  nodes[1]->moved.reset();
  nodes[1]->results.clear();
  nodes[1]->Sync(/*held=*/0);
  EXPECT_EQ(nodes[1]->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_EQ(nodes[1]->WaitForMoved(), std::pair(PlanVersion(6), Round(1)));
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
  EXPECT_GT(engine_->stats().memory_used_bytes, 0u) << "kept until it is released";
  engine_->Release(kJob, kTensor, {0});
  EXPECT_EQ(engine_->stats().memory_used_bytes, 0u);
}

TEST_F(EngineTest, FirstContributionSetsTheRoundOfAPartitionThatWasHandedOver) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/6, /*handed_over=*/true).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Push({9.0f}, 3);  // from a time when this server was the owner: dropped
  for (Node* node : nodes) node->version = 6;
  nodes[1]->Push({2.0f}, 8);
  nodes[0]->Push({1.0f}, 8);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(8), std::vector<float>{3.0f});
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, PartitionThatReturnsAtAnotherShardIsDroppedAtTheFormerShard) {
  Start(1, /*memory_limit=*/0, /*shards=*/2);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/3).ok());
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/5, /*handed_over=*/false, /*shard=*/1).ok());
  const auto rounds = engine_->RollCall(kJob, 10);
  ASSERT_EQ(rounds.size(), 1u) << "held once";
  EXPECT_EQ(rounds[0].state, "recovering");
  Node* node = Join(0, {}, /*shard=*/1);
  ASSERT_TRUE(node->WaitForHello());
  node->Report(5, 7);
  EXPECT_EQ(node->WaitForRecovered(), Round(7));
}

TEST_F(EngineTest, AnotherTensorUnderTheSameNumberTakesItsPlace) {
  Start(1);
  ASSERT_TRUE(Reserve(64, 64).ok()) << "by a scheduler that has lost this record since";
  const uint64_t reserved = engine_->job_numbers().at(kJob).reserved_bytes;
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  ASSERT_TRUE(Reserve(2, 2).ok());
  EXPECT_LT(engine_->job_numbers().at(kJob).reserved_bytes, reserved)
      << "nothing of the former tensor is held";
  node->Push({1.0f, 2.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), (std::vector<float>{1.0f, 2.0f}));
}

TEST_F(EngineTest, UnusedPartitionIsHandedOverAtOnce) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(2));
  EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(2), Round(0)));
}

TEST_F(EngineTest, FrameAboutAPartitionOfAnotherServerIsDropped) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1, /*partition=*/7);
  node->Push({1.0f}, 1, 0, TensorId(99));
  node->Push({4.0f}, 1);
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{4.0f});
}

TEST_F(EngineTest, TokenOfAnotherJobsKeyIsRefused) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* intruder = Join(0, {.key = "guess!"});
  EXPECT_EQ(intruder->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
}

TEST_F(EngineTest, TokenExpiresWithAToleranceOfMinutesForTheClock) {
  Start(2);
  Node* late = Join(0, {.expires_in = -auth::kClockSkew - absl::Minutes(1)});
  EXPECT_EQ(late->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kExpiredToken), 1u);
  EXPECT_TRUE(Join(0, {.expires_in = -auth::kClockSkew + absl::Minutes(1)})->WaitForHello());
}

TEST_F(EngineTest, TokenOfAnotherGenerationIsRefused) {
  Start(1);
  Node* former = Join(0, {.generation = Generation(2)});
  EXPECT_EQ(former->WaitForClose().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refused(Refusal::kNotMember), 1u);
}

TEST_F(EngineTest, ProofRecordedOnALinkOpensNoOtherLink) {
  Start(1);
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  Node* eavesdropper = Join(0, {.overheard = node->proof});
  EXPECT_EQ(eavesdropper->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
  EXPECT_FALSE(node->closed) << "and the node's own link stays";
}

TEST_F(EngineTest, ServerProvesThatItKnowsTheKey) {
  Start(1);
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  EXPECT_TRUE(node->server_is_real);
}

TEST_F(EngineTest, ContributionOfAFutureRoundIsRefused) {
  Start(2);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 2);
  EXPECT_EQ(node->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ContributionOfAnotherSizeIsRefused) {
  Start(1);
  ASSERT_TRUE(Reserve(4, 64).ok());
  Node* node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1);
  EXPECT_EQ(node->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, RefusedReservationNamesTheNumbers) {
  Start(1, /*memory_limit=*/2000);
  const absl::Status status = Reserve(1000, 64);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("2KB"), std::string::npos) << status;
  EXPECT_TRUE(Reserve(8, 64).ok()) << "what fits is still taken";
}

TEST_F(EngineTest, ReleaseAndANewGenerationFreeTheMemory) {
  constexpr uint64_t kEach = 2 * 64 * sizeof(float) + PartitionTableBytes(1);
  Start(1, /*memory_limit=*/4 * kEach);
  ASSERT_TRUE(Reserve(256, 64).ok());
  engine_->Release(kJob, kTensor);
  EXPECT_EQ(engine_->free_bytes(), 4 * kEach);
  ASSERT_TRUE(Reserve(256, 64).ok());
  engine_->Release(kJob, kTensor, {1, 3});
  EXPECT_EQ(engine_->free_bytes(), 2 * kEach);
  engine_->RetainOnly({{kJob, {{kTensor, {0}}}}});
  EXPECT_EQ(engine_->free_bytes(), 3 * kEach);
  job_.generation = Generation(2);
  engine_->SetJob(job_);
  EXPECT_EQ(engine_->free_bytes(), 4 * kEach);
}

TEST_F(EngineTest, TraceHasTheLastRoundsOfEveryTensor) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  ASSERT_TRUE(Reserve(1, 64, TensorId(2)).ok());
  Node* const node = Join(0);
  ASSERT_TRUE(node->WaitForHello());
  for (uint64_t round = 1; round <= 3; ++round) {
    node->Push({1}, round);
    EXPECT_EQ(node->WaitForResult(round), std::vector<float>{1});
  }
  node->results.clear();
  node->Push({1}, 1, 0, TensorId(2));
  EXPECT_EQ(node->WaitForResult(1), std::vector<float>{1});
  const auto rounds_of = [this](JobId job, uint64_t rounds) {
    std::set<std::pair<uint32_t, uint64_t>> found;
    for (const SumEvent& event : engine_->Trace(job, rounds)) {
      found.emplace(event.partition.tensor().value(), event.round.value());
    }
    return found;
  };
  using Rounds = std::set<std::pair<uint32_t, uint64_t>>;
  EXPECT_EQ(rounds_of(kJob, 1), (Rounds{{1, 3}, {2, 1}}));
  EXPECT_EQ(rounds_of(kJob, 2), (Rounds{{1, 2}, {1, 3}, {2, 1}}));
  EXPECT_EQ(rounds_of(kJob, 9), (Rounds{{1, 1}, {1, 2}, {1, 3}, {2, 1}}));
  EXPECT_EQ(rounds_of(JobId(9), 9), Rounds());
  EXPECT_EQ(engine_->TensorNames(kJob),
            (std::map<TensorId, std::string>{{kTensor, "tensor"}, {TensorId(2), "tensor"}}));
  EXPECT_TRUE(engine_->TensorNames(JobId(9)).empty());
}

TEST_F(EngineTest, TraceIsOfTheLastGenerationWithEvents) {
  Start(1);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* const first = Join(0);
  ASSERT_TRUE(first->WaitForHello());
  first->Push({1}, 1);
  EXPECT_EQ(first->WaitForResult(1), std::vector<float>{1});
  job_.generation = Generation(2);
  engine_->SetJob(job_);
  EXPECT_FALSE(engine_->Trace(kJob, 9).empty());
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* const second = Join(0, {.generation = Generation(2)});
  ASSERT_TRUE(second->WaitForHello());
  second->Push({1}, 1);
  EXPECT_EQ(second->WaitForResult(1), std::vector<float>{1});
  const std::vector<SumEvent> events = engine_->Trace(kJob, 9);
  ASSERT_FALSE(events.empty());
  for (const SumEvent& event : events) EXPECT_EQ(event.generation, Generation(2));
}

TEST_F(EngineTest, TraceReachesBehindTheRoundsOfAnotherJob) {
  Start(1);
  for (const JobId job : {kJob, JobId(9)}) {
    job_.id = job;
    engine_->SetJob(job_);
    ASSERT_TRUE(Reserve(1, 64).ok());
    Node* const node = Join(0, {.job = job});
    ASSERT_TRUE(node->WaitForHello());
    node->Push({1}, 1);
    EXPECT_EQ(node->WaitForResult(1), std::vector<float>{1});
  }
  for (const JobId job : {kJob, JobId(9)}) {
    const std::vector<SumEvent> events = engine_->Trace(job, 9);
    ASSERT_FALSE(events.empty()) << job.value();
    for (const SumEvent& event : events) EXPECT_EQ(event.job, job);
  }
}

TEST_F(EngineTest, NumbersOfAJobAreThoseOfItsPresentGeneration) {
  constexpr uint64_t kEach = 2 * 64 * sizeof(float) + PartitionTableBytes(1);
  Start(1, /*memory_limit=*/0, /*shards=*/2);
  ASSERT_TRUE(Reserve(128, 64).ok());
  ASSERT_TRUE(Reserve(64, 64, TensorId(2), 0, false, /*shard=*/1).ok());
  EXPECT_EQ(engine_->job_numbers().at(kJob).reserved_bytes, 3 * kEach);
  Node* const node = Join(0, {}, /*shard=*/1);
  ASSERT_TRUE(node->WaitForHello());
  EXPECT_EQ(engine_->links().by_transport, (std::map<std::string, uint64_t>{{"tcp", 1}}));
  node->Push(std::vector<float>(64, 1.0f), 1, 0, TensorId(2));
  EXPECT_EQ(node->WaitForResult(1).size(), 64u);
  EXPECT_EQ(engine_->job_numbers().at(kJob).totals.payload_bytes, 64 * sizeof(float));
  EXPECT_EQ(engine_->stats().payload_bytes_summed, 64 * sizeof(float));
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
  EXPECT_GE(engine_->stats().network_bytes_received, 64 * sizeof(float));
  EXPECT_GE(engine_->stats().network_bytes_sent, 64 * sizeof(float));
  engine_->ReleaseJob(kJob);
  EXPECT_TRUE(engine_->job_numbers().empty());
  EXPECT_EQ(engine_->stats().memory_used_bytes, 0u);
  EXPECT_TRUE(absl::IsNotFound(Reserve(1, 64)));
}

TEST_F(EngineTest, JobsAndTensorsThatAreNotWantedAreDropped) {
  Start(1);
  JobSpec other = job_;
  other.id = JobId(9);
  engine_->SetJob(other);
  ASSERT_TRUE(Reserve(128, 64).ok());
  ASSERT_TRUE(Reserve(64, 64, TensorId(2)).ok());
  engine_->RetainOnly({{kJob, {{kTensor, {1}}}}});
  EXPECT_FALSE(engine_->job_numbers().contains(JobId(9)));
  EXPECT_EQ(engine_->TensorNames(kJob).size(), 1u);
  EXPECT_EQ(engine_->job_numbers().at(kJob).reserved_bytes,
            2 * 64 * sizeof(float) + PartitionTableBytes(1));
}

TEST_F(EngineTest, EngineHasAtLeastOneShard) {
  EXPECT_TRUE(absl::IsInvalidArgument(Engine::Create({.shards = 0,
                                                      .incarnation = Incarnation(5),
                                                      .send_limits = {},
                                                      .network = nullptr,
                                                      .external_slots = nullptr})
                                          .status()));
}

class PartitionTableTest : public EngineTest, public testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Nodes, PartitionTableTest, testing::Values(1, 8, 64));

// Under the sanitizers' allocator mallinfo2 says nothing.
TEST_P(PartitionTableTest, CoversTheMemoryOfPartitionsBesideTheirValues) {
  constexpr uint64_t kPartitions = 1 << 14;
  Start(GetParam());
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  ASSERT_TRUE(Reserve(kPartitions, 1).ok());
  const size_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
  const uint64_t counted = kPartitions * PartitionTableBytes(GetParam());
  EXPECT_LE(taken, counted);
  if (taken != 0) {
    EXPECT_GE(taken, counted / 3);
  }
}

TEST_P(PartitionTableTest, CoversTheMemoryOfAsynchronousPartitionsBesideTheirValues) {
  constexpr uint64_t kPartitions = 1 << 12;
  op_ = ReduceOp::kAccumulate;
  Start(GetParam());
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  ASSERT_TRUE(Reserve(kPartitions, 1).ok());
  const size_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
  EXPECT_LE(taken, kPartitions * LatestPartitionTableBytes(GetParam()));
}

TEST_F(EngineTest, RefusedAsynchronousTensorTakesNoMemory) {
  constexpr uint64_t kPartitions = 1 << 14;
  op_ = ReduceOp::kAccumulate;
  Start(/*nodes=*/256, /*memory_limit=*/1 << 20);
  const auto most_resident_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = most_resident_kib();
  EXPECT_TRUE(absl::IsResourceExhausted(Reserve(kPartitions, 1)));
  EXPECT_LT(most_resident_kib() - before, 32 << 10) << "the partitions would take 200 MiB";
}

TEST_F(EngineTest, PartitionsOfAJobAreLimited) {
  Start(1);
  ASSERT_TRUE(Reserve(kMaxPartitions - 1, 1).ok());
  const absl::Status status = Reserve(2, 1, TensorId(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("raise --partition-bytes"), std::string::npos);
  EXPECT_TRUE(Reserve(1, 1, TensorId(3)).ok());
}

TEST_F(EngineTest, JobWithAnImpossibleNumberOfRanksIsRefused) {
  Start(2);
  JobSpec job = job_;
  job.id = JobId(9);
  for (const uint32_t local_size : {0u, kMaxLocalSize + 1, 1u << 31}) {
    job.local_size = local_size;
    EXPECT_EQ(engine_->CheckJob(job).code(), absl::StatusCode::kInvalidArgument) << local_size;
  }
  job.local_size = kMaxLocalSize;
  EXPECT_TRUE(engine_->CheckJob(job).ok());
}

TEST_F(EngineTest, RollCallNamesTheMissingNodes) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* node = Join(1);
  ASSERT_TRUE(node->WaitForHello());
  node->Push({1.0f}, 1);
  std::vector<OpenRoundInfo> rounds;
  while (rounds.empty()) rounds = engine_->RollCall(kJob, 10);
  EXPECT_EQ(rounds[0].pushed, std::vector<NodeId>{NodeId(1)});
  EXPECT_EQ(rounds[0].missing, (std::vector<NodeId>{NodeId(0), NodeId(2)}));
  EXPECT_EQ(rounds[0].round, Round(1));
}

TEST_F(EngineTest, FailedGenerationSealsNoRoundAndTellsEveryContributor) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  for (Node* node : nodes) node->Push({1.0f}, 1);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForResult(1), std::vector<float>{3.0f});
  nodes[0]->Push({1.0f}, 2);
  while (engine_->RollCall(kJob, 1).empty()) {
  }
  job_.failed = true;
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  EXPECT_EQ(nodes[0]->WaitForAborted(), Round(2));
  EXPECT_FALSE(nodes[2]->WaitForClose().ok()) << "nothing is taken from it any more";
  nodes[1]->WaitForAborted();
  nodes[1]->Push({1.0f}, 2);
  EXPECT_EQ(nodes[1]->WaitForAborted(), Round(2)) << "it comes later";
  // A node that lacks the round before still gets it, and a failed round is not a stall.
  nodes[0]->results.clear();
  nodes[0]->Push({1.0f}, 1);
  EXPECT_EQ(nodes[0]->WaitForResult(1), std::vector<float>{3.0f});
  EXPECT_TRUE(engine_->RollCall(kJob, 1).empty());
  EXPECT_EQ(engine_->stats().partitions_sealed, 1u);
}

TEST_F(EngineTest, OtherNodesContinueWithoutALostNode) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[2]->Push({4.0f}, 1);
  nodes[1]->Push({2.0f}, 1);
  while (engine_->RollCall(kJob, 1).empty() || engine_->RollCall(kJob, 1)[0].pushed.size() < 2) {
  }
  job_.lost = {NodeId(0)};
  engine_->SetJob(job_);
  for (Node* node : {nodes[1], nodes[2]}) {
    EXPECT_EQ(node->WaitForResult(1), std::vector<float>{6.0f});
    EXPECT_EQ(node->contributors, 2u);
    node->Push({1.0f}, 2);
  }
  EXPECT_EQ(nodes[1]->WaitForResult(2), std::vector<float>{2.0f});
  Node* back = Join(0);
  EXPECT_EQ(back->WaitForClose().code(), absl::StatusCode::kPermissionDenied);
  // Nor does a later owner wait for its report.
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/7).ok());
  for (Node* node : {nodes[1], nodes[2]}) node->Report(7, 2);
  EXPECT_EQ(nodes[1]->WaitForRecovered(), Round(2));
}

TEST_F(EngineTest, RoundThatOnlyALostNodeHeldIsSummedAgain) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/7).ok());
  Node* nodes[] = {Join(0), Join(1), Join(2)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  nodes[0]->Report(7, 4);
  nodes[1]->Report(7, 4);
  nodes[2]->Report(7, 5);
  for (Node* node : nodes) EXPECT_EQ(node->WaitForRecovered(), Round(5));
  EXPECT_TRUE(nodes[2]->WaitForRequest(5));
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  for (Node* node : {nodes[0], nodes[1]}) {
    EXPECT_TRUE(node->WaitForSendAgain());
    node->version = 7;
    node->Push({1.0f}, 5);
  }
  for (Node* node : {nodes[0], nodes[1]})
    EXPECT_EQ(node->WaitForResult(5), std::vector<float>{2.0f});
}

TEST_F(EngineTest, PartitionThatReturnsToItsOwnerInAFailedGenerationIsAborted) {
  Start(3);
  ASSERT_TRUE(Reserve(1, 64).ok());
  Node* nodes[] = {Join(0), Join(1)};
  for (Node* node : nodes) ASSERT_TRUE(node->WaitForHello());
  engine_->HandOver(kJob, kTensor, {0}, PlanVersion(2));
  for (Node* node : nodes) EXPECT_EQ(node->WaitForMoved(), std::pair(PlanVersion(2), Round(0)));
  job_.failed = true;
  job_.lost = {NodeId(2)};
  engine_->SetJob(job_);
  ASSERT_TRUE(Reserve(1, 64, kTensor, /*version=*/3).ok());  // the owner to be was lost
  for (Node* node : nodes) {
    node->version = 3;
    node->Report(3, 0);
  }
  for (Node* node : nodes) {
    EXPECT_EQ(node->WaitForRecovered(), Round(0));
    node->Push({1.0f}, 1);
    EXPECT_EQ(node->WaitForAborted(), Round(1));
  }
  EXPECT_EQ(engine_->stats().partitions_sealed, 0u);
}

}  // namespace
}  // namespace addend
