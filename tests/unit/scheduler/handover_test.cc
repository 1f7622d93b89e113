#include "services/scheduler/handover.h"

#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using Phase = Change::Phase;

// A tensor is published at one server, and a second server has joined.
class HandoverTest : public JobScopeTest {
 protected:
  HandoverTest() {
    AddNodes(2);
    first_ = AddServer().id;
    tensor_ = &Published("w", 20000);
    joined_ = AddServer().id;
    job_.current.rebalance = PlanReason::kJoin;
  }
  Change& change() { return job_.current.change; }
  void Plan() { Handover(scope()).Plan(); }
  void Advance() {
    NextEvent();
    Handover(scope()).Advance();
  }
  void AllNodes(std::set<NodeId>* set) { *set = {NodeId(0), NodeId(1)}; }

  ServerId first_, joined_;
  DeclaredTensor* tensor_ = nullptr;
};

TEST_F(HandoverTest, ChangeGoesFromReservationToHandOverToItsEnd) {
  Plan();
  EXPECT_TRUE(change().under_way());
  EXPECT_TRUE(Asks(joined_));
  EXPECT_EQ(PartitionsAt(*tensor_, joined_), 0) << "owners change at the end";
  Advance();
  EXPECT_EQ(change().phase, Phase::kReserving) << "the owner-to-be has not answered";
  change().awaited.clear();
  Advance();
  EXPECT_EQ(change().phase, Phase::kAnnounced);
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_GT(Broadcast()->tensors(0).moves_size(), 0);
  change().connected.insert(NodeId(0));
  Advance();
  EXPECT_EQ(change().phase, Phase::kAnnounced) << "node 1 is not connected";
  AllNodes(&change().connected);
  Advance();
  EXPECT_EQ(change().phase, Phase::kHandingOver);
  EXPECT_GT(changes_->ReservationFor(first_, job_.id)->hand_over_size(), 0);
  AllNodes(&change().following);
  Advance();
  EXPECT_FALSE(change().under_way());
  EXPECT_TRUE(tensor_->plan.moves().empty());
  EXPECT_GT(PartitionsAt(*tensor_, joined_), 0);
  EXPECT_GT(changes_->ReleasesFor(first_, job_.id)->release_partitions_size(), 0);
}

TEST_F(HandoverTest, NodesThatTakeNoPartAreNotWaitedFor) {
  Plan();
  change().awaited.clear();
  Advance();
  change().connected.insert(NodeId(0));
  job_.nodes.at(NodeId(1)).idle = true;
  Advance();
  EXPECT_EQ(change().phase, Phase::kHandingOver);
}

TEST_F(HandoverTest, JobIsInOneChangeAtATime) {
  Plan();
  const PlanVersion version = change().version;
  job_.current.rebalance = PlanReason::kJoin;
  Plan();
  EXPECT_EQ(change().version, version);
  EXPECT_TRUE(job_.current.rebalance.has_value()) << "it is due afterwards";
}

TEST_F(HandoverTest, ChangeWaitsForRecoveringOwnersAndForUnheardNodes) {
  tensor_->recovering.insert(first_);
  Plan();
  EXPECT_FALSE(change().under_way());
  tensor_->recovering.clear();
  job_.nodes.at(NodeId(1)).lease.has_watched = false;
  Plan();
  EXPECT_FALSE(change().under_way());
}

TEST_F(HandoverTest, MovesAreAnnouncedOnlyWhenNewOwnersOfTheTensorHaveAnswered) {
  Plan();
  change().awaited.clear();
  tensor_->recovering.insert(first_);
  Advance();
  EXPECT_EQ(change().phase, Phase::kReserving);
}

TEST_F(HandoverTest, MovesThatARestoredChangeGivesUpAreTakenBackFromTheNodes) {
  Plan();
  change().restored = true;  // the nodes may have the moves from a former scheduler
  PartitionLedger(scope()).CancelMoves(tensor_, joined_);
  ASSERT_TRUE(tensor_->plan.moves().empty());
  change().awaited.clear();
  Advance();
  ASSERT_NE(Broadcast(), nullptr);
  ASSERT_EQ(Broadcast()->tensors_size(), 1);
  EXPECT_TRUE(Broadcast()->tensors(0).moves().empty());
}

TEST_F(HandoverTest, CancelledMovesGiveTheirLoadAndMemoryBack) {
  const uint64_t load = job_.current.loads[{}].at(first_).bytes;
  Plan();
  EXPECT_LT(job_.current.loads[{}].at(first_).bytes, load);
  PartitionLedger(scope()).CancelMoves(tensor_, joined_);
  EXPECT_EQ(job_.current.loads[{}].at(first_).bytes, load);
  EXPECT_EQ(job_.current.loads[{}].at(joined_).bytes, 0u);
  EXPECT_FALSE(tensor_->owned.contains(joined_));
}

}  // namespace
}  // namespace addend
