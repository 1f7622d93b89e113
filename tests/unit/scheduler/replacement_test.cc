#include "services/scheduler/replacement.h"

#include <gmock/gmock.h>

#include "absl/strings/str_format.h"
#include "services/scheduler/handover.h"
#include "services/scheduler/stale_store.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Stages = v1::AgreementRecord;

class ReplacementTest : public JobScopeTest {
 protected:
  ReplacementTest() {
    AddNodes(2);
    lost_ = AddServer().id;
    other_ = AddServer().id;
    tensor_ = &Published("w", 20000);
  }
  void Lose(ServerId server) {
    fleet_.Remove(server);
    Replacement(scope()).LoseServer(server, "server lost");
  }

  ServerId lost_, other_;
  DeclaredTensor* tensor_ = nullptr;
};

TEST_F(ReplacementTest, NodesAreToldOfNewOwnersWhenTheseHaveAnswered) {
  ASSERT_GT(PartitionsAt(*tensor_, lost_), 0);
  const uint64_t version = job_.plan_version.value();
  Lose(lost_);
  EXPECT_EQ(PartitionsAt(*tensor_, lost_), 0);
  EXPECT_EQ(job_.plan_version.value(), version + 1);
  EXPECT_TRUE(Asks(other_));
  EXPECT_EQ(Broadcast(), nullptr);
  Placement(scope()).TakeAnswer(*fleet_.Find(other_), tensor_, /*settled=*/false);
  Placement(scope()).PublishAnswered();
  EXPECT_EQ(Broadcast(), nullptr) << "it has been asked for more since";
  Placement(scope()).TakeAnswer(*fleet_.Find(other_), tensor_, /*settled=*/true);
  Placement(scope()).PublishAnswered();
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->tensors_size(), 1);
}

TEST_F(ReplacementTest, NodesAreNotToldOfOwnersThatTheSameEventLoses) {
  AddServer();
  Lose(lost_);
  for (const ServerId server : std::set<ServerId>(tensor_->recovering)) {
    Placement(scope()).TakeAnswer(*fleet_.Find(server), tensor_, /*settled=*/true);
  }
  Lose(other_);
  Placement(scope()).PublishAnswered();
  EXPECT_TRUE(Broadcast() == nullptr || Broadcast()->tensors_size() == 0);
}

TEST_F(ReplacementTest, JobFailsIfNoServerIsLeft) {
  Lose(other_);
  Lose(lost_);
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_THAT(job_.current.reason, HasSubstr("nobody else can sum its"));
}

TEST_F(ReplacementTest, ServerThatARestartedSchedulerHasNotHeardIsBetterThanNobody) {
  fleet_.Find(other_)->lease = Leases(absl::Seconds(5), now_).Restored(now_);
  job_.current.plan_servers.erase(other_);
  Lose(lost_);
  EXPECT_EQ(job_.current.state, v1::READY);
  EXPECT_GT(PartitionsAt(*tensor_, other_), 0);
}

TEST_F(ReplacementTest, MoveWithALostEndStaysAtTheOtherEnd) {
  const ServerId joined = AddServer().id;
  job_.current.rebalance = PlanReason::kJoin;
  Handover(scope()).Plan();
  std::vector<uint32_t> moving;
  for (const v1::PartitionMove& move : tensor_->plan.moves()) moving.push_back(move.partition());
  ASSERT_FALSE(moving.empty());
  const v1::TensorPlan before = tensor_->plan;
  job_.current.change.phase = Change::Phase::kAnnounced;
  Lose(joined);
  EXPECT_TRUE(tensor_->plan.moves().empty());
  for (const uint32_t index : moving) {
    EXPECT_EQ(tensor_->plan.servers(static_cast<int>(index)),
              before.servers(static_cast<int>(index)));
    EXPECT_EQ(tensor_->plan.versions(static_cast<int>(index)), job_.plan_version.value());
  }
  EXPECT_EQ(job_.current.rebalance, PlanReason::kLoss);
}

TEST_F(ReplacementTest, MoveThatNobodyMayHaveBegunIsGivenUpWithoutARecovery) {
  const ServerId joined = AddServer().id;
  job_.current.rebalance = PlanReason::kJoin;
  Handover(scope()).Plan();
  ASSERT_FALSE(tensor_->plan.moves().empty());
  job_.current.change.may_have_been_ordered = true;
  v1::Announced told;
  told.set_job_id(job_.id.value());
  told.set_generation(job_.current.number.value());
  told.set_plan_version(job_.current.change.version.value());
  const Node& node = job_.nodes.at(NodeId(0));
  Handover(scope()).TakeAnnounced(node, told);
  EXPECT_TRUE(job_.current.change.MayBeOrdered()) << "the node knows of the change";
  told.set_plan_version(told.plan_version() - 1);
  Handover(scope()).TakeAnnounced(node, told);
  Lose(joined);
  EXPECT_TRUE(tensor_->plan.moves().empty());
  EXPECT_TRUE(tensor_->plan.versions().empty());
  EXPECT_TRUE(tensor_->recovering.empty());
  EXPECT_EQ(job_.current.rebalance, PlanReason::kLoss);
}

TEST_F(ReplacementTest, JobThatLeavesALivingServerReleasesItAndItsMemory) {
  Server& left = *fleet_.Find(lost_);
  left.unanswered[7] = {{job_.id, TensorId(1)}, {JobId(99), TensorId(1)}};
  job_.avoided[lost_] = now_ + absl::Minutes(1);
  Replacement(scope()).LeaveServer(&left, "node 0 cannot reach it");
  EXPECT_TRUE(changes_->ReservationFor(lost_, job_.id)->release_all());
  EXPECT_EQ(left.unanswered[7].size(), 1u) << "another job's reservation stays";
  EXPECT_EQ(PartitionsAt(*tensor_, lost_), 0);
  EXPECT_FALSE(job_.current.plan_servers.contains(lost_));
}

TEST_F(ReplacementTest, AllPartitionsRecoverAtTheirOwnersUnderANewVersion) {
  const v1::TensorPlan before = tensor_->plan;
  Replacement(scope()).RecoverAll();
  EXPECT_THAT(tensor_->recovering, UnorderedElementsAre(lost_, other_));
  for (int i = 0; i < tensor_->plan.servers_size(); ++i) {
    EXPECT_EQ(tensor_->plan.servers(i), before.servers(i));
    EXPECT_EQ(tensor_->plan.versions(i), job_.plan_version.value());
  }
  EXPECT_TRUE(changes_->updates().servers.at(lost_).full());
}

class StaleStoreTest : public ReplacementTest {
 protected:
  v1::Announced Told() const {
    v1::Announced told;
    told.set_job_id(job_.id.value());
    told.set_generation(job_.current.number.value());
    told.set_tensor_id(job_.next_tensor - 1);
    told.set_plan_version(job_.plan_version.value());
    return told;
  }
  void Compare(const v1::Announced& told) { StaleStore(scope()).CompareWithNode(told); }
};

TEST_F(StaleStoreTest, NumbersThatTheSchedulerGaveItselfChangeNothing) {
  const PlanVersion version = job_.plan_version;
  Compare(Told());
  EXPECT_EQ(job_.plan_version, version);
  EXPECT_TRUE(tensor_->recovering.empty());
}

TEST_F(StaleStoreTest, JobRecoversAboveAPlanVersionThatTheStoreHasLost) {
  job_.stored_version = job_.plan_version.value();
  job_.first_given_version = 0;
  v1::Announced told = Told();
  told.set_plan_version(job_.plan_version.value() + 3);
  Compare(told);
  EXPECT_EQ(job_.current.state, v1::READY);
  EXPECT_GT(job_.plan_version.value(), told.plan_version());
  EXPECT_FALSE(tensor_->recovering.empty());
}

TEST_F(StaleStoreTest, GenerationWithATensorThatTheStoreHasLostFails) {
  v1::Announced told = Told();
  told.set_tensor_id(job_.next_tensor);
  Compare(told);
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(job_.next_tensor, told.tensor_id() + 1) << "the number is not given again";
  EXPECT_THAT(job_.current.reason,
              HasSubstr(absl::StrFormat("ends with number %d", told.tensor_id() - 1)));
}

TEST_F(StaleStoreTest, TensorThatTheStoreHasLostIsNotMistakenForALaterTensor) {
  v1::Announced told = Told();
  told.set_tensor_id(job_.next_tensor);
  job_.stored_next_tensor = job_.next_tensor;
  job_.first_given_tensor = 0;
  job_.NextTensor();
  Compare(told);
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(job_.next_tensor, job_.first_given_tensor + 1);
  EXPECT_THAT(job_.current.reason,
              HasSubstr(absl::StrFormat("ends with number %d", told.tensor_id() - 1)));
}

TEST_F(StaleStoreTest, GenerationThatTheStoreHasLostFailsUnderItsNumber) {
  v1::Announced told = Told();
  told.set_generation(4);
  Compare(told);
  EXPECT_EQ(job_.current.number, Generation(4));
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(job_.current.gone.size(), 2u);
  EXPECT_TRUE(job_.current.tensors.empty());
}

TEST_F(StaleStoreTest, ImplausibleNumbersAreIgnored) {
  v1::Announced told = Told();
  told.set_generation(1u << 30);
  Compare(told);
  told = Told();
  told.set_plan_version(uint64_t{1} << 60);
  Compare(told);
  told = Told();
  told.set_job_id(99);
  told.set_generation(4);
  Compare(told);
  EXPECT_EQ(job_.current.number, Generation(1));
  EXPECT_EQ(job_.current.state, v1::READY);
  EXPECT_TRUE(tensor_->recovering.empty());
}

TEST_F(StaleStoreTest, ServerThatOwnsNothingOfTheJobDecidesNothing) {
  job_.stored_version = job_.plan_version.value();
  job_.first_given_version = 0;
  const Server& idle = AddServer();
  v1::Announced told = Told();
  told.set_plan_version(job_.plan_version.value() + 3);
  StaleStore(scope()).CompareWithServer(idle, told);
  EXPECT_TRUE(tensor_->recovering.empty());
  StaleStore(scope()).CompareWithServer(*fleet_.Find(lost_), told);
  EXPECT_FALSE(tensor_->recovering.empty());
}

}  // namespace
}  // namespace addend
