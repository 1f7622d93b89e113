// The accounts of a job's partitions: owners, loads and the servers' memory, through moves.
#include "services/scheduler/partition_ledger.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kLimit = 1 << 20;

// The tensor "w" has two partitions of 4,096 bytes, each on one of two servers; a third is idle.
class PartitionLedgerTest : public JobScopeTest {
 protected:
  PartitionLedgerTest() {
    AddNodes(2);
    for (int i = 0; i < 2; ++i) AddServer(kLimit);
    tensor_ = &Published("w", 2048);
    third_ = AddServer(kLimit).id;
    first_ = OwnerOf(0);
    second_ = OwnerOf(1);
    ForEachPartition(tensor_->plan, 2, [this](const PlannedPartition& partition) {
      partitions_.push_back(partition);
    });
    bytes_ = partitions_[0].accumulator_bytes;
  }
  ServerId OwnerOf(int partition) const { return ServerId(tensor_->plan.servers(partition)); }
  PartitionLedger ledger() { return PartitionLedger(scope()); }
  uint64_t Taken(ServerId server) { return kLimit - fleet_.Find(server)->free_bytes; }
  uint64_t Load(ServerId server) {
    const std::map<ServerId, JobLoad>& loads = job_.current.loads[{}];
    const auto load = loads.find(server);
    return load == loads.end() ? 0 : load->second.bytes;
  }
  // What this event tells the server about its releases.
  const v1::JobReservation* Released(ServerId server) {
    const auto update = changes_->updates().servers.find(server);
    return update == changes_->updates().servers.end() ? nullptr : &update->second.jobs(0);
  }
  // Partition 0 is to move to the third server, as version 9.
  void PlanMove() {
    job_.current.change.version = PlanVersion(9);
    ledger().PlanMove(tensor_, partitions_[0], {third_, 2});
  }

  DeclaredTensor* tensor_ = nullptr;
  ServerId first_, second_, third_;
  std::vector<PlannedPartition> partitions_;
  uint64_t bytes_ = 0;  // of a partition's memory
};

TEST_F(PartitionLedgerTest, PlanOfATensorIsEntered) {
  ASSERT_NE(first_, second_);
  EXPECT_THAT(tensor_->owned.at(first_).partitions, ElementsAre(0));
  EXPECT_THAT(tensor_->owned.at(second_).partitions, ElementsAre(1));
  EXPECT_EQ(tensor_->owned.at(first_).accumulator_bytes, bytes_);
  EXPECT_EQ(Taken(first_), bytes_);
  EXPECT_EQ(Load(first_), 4096u);
  EXPECT_EQ(job_.current.partitions, 2u);
}

TEST_F(PartitionLedgerTest, RemovedPlanGivesMemoryAndLoadBack) {
  const uint32_t id = tensor_->plan.tensor_id();
  ledger().Remove(tensor_, /*told=*/{second_});
  EXPECT_EQ(Taken(first_), 0u);
  EXPECT_THAT(Released(first_)->release_tensors(), ElementsAre(id));
  EXPECT_EQ(Released(second_), nullptr) << "it knows, and its memory is accounted for elsewhere";
  EXPECT_EQ(Load(first_) + Load(second_), 0u);
  EXPECT_EQ(job_.current.partitions, 0u);
  EXPECT_THAT(tensor_->owned, IsEmpty());
  EXPECT_EQ(tensor_->plan.tensor_id(), 0u);
  EXPECT_EQ(job_.current.tensors.Find(TensorId(id)), nullptr);
  EXPECT_EQ(changes_->records().deleted.size(), 1u);
}

TEST_F(PartitionLedgerTest, NextVersionIsStoredAndCountedByItsReason) {
  const uint64_t former = job_.plan_version.value();
  const uint64_t counted = history_.plan_changes[PlanReason::kPace];
  ledger().NextPlanVersion(PlanReason::kPace);
  EXPECT_EQ(job_.plan_version, PlanVersion(former + 1));
  EXPECT_EQ(history_.plan_changes[PlanReason::kPace], counted + 1);
  EXPECT_THAT(changes_->records().jobs, ElementsAre(job_.id));
}

TEST_F(PartitionLedgerTest, AskedServerHasToAnswer) {
  ledger().Ask(*tensor_, first_, tensor_->owned.at(first_));
  EXPECT_TRUE(Asks(first_));
  EXPECT_FALSE(Asks(second_));
  EXPECT_THAT(changes_->updates().servers.at(first_).jobs(0).reserve(0).partitions(),
              ElementsAre(0));
}

TEST_F(PartitionLedgerTest, MoveAtOnceChangesTheOwnerUnderTheJobsVersion) {
  job_.plan_version = PlanVersion(9);
  ledger().Move(tensor_, partitions_[0], {third_, 2});
  EXPECT_EQ(OwnerOf(0), third_);
  EXPECT_THAT(tensor_->plan.shards(), ElementsAre(2, partitions_[1].shard));
  EXPECT_THAT(tensor_->plan.versions(), ElementsAre(9, 0));
  EXPECT_EQ(Load(first_), 0u);
  EXPECT_EQ(Load(third_), 4096u);
  EXPECT_THAT(job_.current.loads[{}].at(third_).shards, ElementsAre(0, 0, 4096));
  EXPECT_EQ(Taken(third_), bytes_);
  EXPECT_THAT(tensor_->owned.at(third_).shards, ElementsAre(2));
  EXPECT_TRUE(job_.current.plan_servers.contains(third_));
}

TEST_F(PartitionLedgerTest, PlannedMoveHoldsTheMemoryOfBothOwnersAndTheNextOwnersLoad) {
  PlanMove();
  EXPECT_EQ(OwnerOf(0), first_);
  ASSERT_EQ(tensor_->plan.moves_size(), 1);
  EXPECT_EQ(tensor_->plan.moves(0).version(), 9u);
  EXPECT_EQ(tensor_->plan.moves(0).shard(), 2u);
  EXPECT_EQ(Taken(first_), bytes_);
  EXPECT_EQ(Taken(third_), bytes_);
  EXPECT_EQ(Load(first_), 0u);
  EXPECT_EQ(Load(third_), 4096u);
  EXPECT_THAT(changes_->records().plans, ElementsAre(std::pair(job_.id, tensor_->agreement)));
}

TEST_F(PartitionLedgerTest, PlanWithAMoveIsEnteredAsItWas) {
  PlanMove();
  const auto owned_before = tensor_->owned.at(third_).partitions;
  const auto loads_before = job_.current.loads[{}].at(third_).shards;
  Fleet fleet;
  Job job;
  job.settings.set_num_nodes(2);
  PartitionLedger::Enter(&job, tensor_, &fleet);
  EXPECT_EQ(tensor_->owned.at(third_).partitions, owned_before);
  EXPECT_THAT(tensor_->owned.at(first_).partitions, ElementsAre(0)) << "it still holds it";
  EXPECT_EQ(job.current.loads[{}].at(third_).shards, loads_before);
  EXPECT_FALSE(job.current.loads[{}].contains(first_));
  EXPECT_EQ(job.current.partitions, 2u);
}

TEST_F(PartitionLedgerTest, RemovedPlanWithAMoveGivesAllBack) {
  PlanMove();
  ledger().Remove(tensor_, {});
  for (const ServerId server : {first_, second_, third_}) {
    EXPECT_EQ(Taken(server), 0u);
    EXPECT_EQ(Load(server), 0u);
  }
}

TEST_F(PartitionLedgerTest, FinishedMoveReleasesTheFormerOwner) {
  PlanMove();
  ledger().FinishMoves(tensor_);
  EXPECT_EQ(OwnerOf(0), third_);
  EXPECT_EQ(tensor_->plan.moves_size(), 0);
  EXPECT_THAT(tensor_->plan.versions(), ElementsAre(9, 0));
  EXPECT_FALSE(tensor_->owned.contains(first_));
  EXPECT_EQ(Taken(first_), 0u);
  EXPECT_EQ(Taken(third_), bytes_);
  ASSERT_EQ(Released(first_)->release_partitions_size(), 1);
  EXPECT_THAT(Released(first_)->release_partitions(0).partitions(), ElementsAre(0));
}

TEST_F(PartitionLedgerTest, TensorWithoutMovesFinishesWithoutAWrite) {
  ledger().FinishMoves(tensor_);
  EXPECT_THAT(changes_->records().plans, IsEmpty());
}

TEST_F(PartitionLedgerTest, CancelledMovesStayWhereTheyAreAndOthersGoOn) {
  PlanMove();
  ledger().PlanMove(tensor_, partitions_[1], {first_, 0});
  ledger().CancelMoves(tensor_, third_);
  ASSERT_EQ(tensor_->plan.moves_size(), 1);
  EXPECT_EQ(tensor_->plan.moves(0).partition(), 1u);
  EXPECT_EQ(Load(first_), 8192u) << "its own, and that which is to come";
  EXPECT_EQ(Load(third_), 0u);
  EXPECT_EQ(Taken(third_), 0u);
  EXPECT_EQ(Taken(first_), 2 * bytes_);
  EXPECT_FALSE(tensor_->owned.contains(third_));
  EXPECT_THAT(Released(third_)->release_partitions(0).partitions(), ElementsAre(0));
}

TEST_F(PartitionLedgerTest, ServerThatGivesUpOnePartitionKeepsTheOthers) {
  job_.current.change.version = PlanVersion(9);
  ledger().PlanMove(tensor_, partitions_[0], {second_, 0});
  ledger().CancelMoves(tensor_, second_);
  EXPECT_THAT(tensor_->owned.at(second_).partitions, ElementsAre(1));
  EXPECT_EQ(tensor_->owned.at(second_).accumulator_bytes, bytes_);
  EXPECT_EQ(tensor_->owned.at(second_).shards.size(), 1u);
  EXPECT_EQ(Taken(second_), bytes_);
}

TEST_F(PartitionLedgerTest, SurvivorOfAMoveBecomesTheOwner) {
  PlanMove();
  job_.plan_version = PlanVersion(12);
  ledger().KeepAtSurvivors(tensor_, {0}, /*lost=*/first_);
  EXPECT_EQ(OwnerOf(0), third_);
  EXPECT_EQ(tensor_->plan.shards(0), 2u);
  EXPECT_THAT(tensor_->plan.versions(), ElementsAre(12, 0));
  EXPECT_EQ(tensor_->plan.moves_size(), 0);
}

TEST_F(PartitionLedgerTest, OwnerKeepsThePartitionWhenTheOwnerToBeIsLost) {
  PlanMove();
  job_.plan_version = PlanVersion(12);
  ledger().KeepAtSurvivors(tensor_, {0}, /*lost=*/third_);
  EXPECT_EQ(OwnerOf(0), first_);
  EXPECT_THAT(tensor_->plan.versions(), ElementsAre(12, 0));
  EXPECT_EQ(tensor_->plan.moves_size(), 0);
  EXPECT_EQ(Load(first_), 4096u);
}

TEST_F(PartitionLedgerTest, MovesOfOtherPartitionsGoOnWithoutTheLostServer) {
  PlanMove();
  ledger().KeepAtSurvivors(tensor_, {1}, /*lost=*/ServerId(99));
  EXPECT_EQ(tensor_->plan.moves_size(), 1);
}

TEST_F(PartitionLedgerTest, NodesAreToldWhenAllNewOwnersAreReady) {
  tensor_->recovering = {first_, third_};
  job_.nodes.begin()->second.info.set_takes_server_changes(false);  // it is told all servers
  ledger().OwnerReady(tensor_, second_);
  ledger().OwnerReady(tensor_, first_);
  Placement(scope()).PublishAnswered();
  EXPECT_EQ(Broadcast(), nullptr);
  ledger().OwnerReady(tensor_, third_);
  Placement(scope()).PublishAnswered();
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->tensors(0).tensor_id(), tensor_->plan.tensor_id());
  EXPECT_EQ(Broadcast()->servers_size(), 2);
}

}  // namespace
}  // namespace addend
