#include "services/scheduler/placement.h"

#include <gmock/gmock.h>

#include "lib/base/failure.h"
#include "services/scheduler/declarations.h"
#include "services/scheduler/reservations.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;
using Stages = v1::AgreementRecord;

class PlacementTest : public JobScopeTest {
 protected:
  PlacementTest() { AddNodes(2); }
  void Plan(const DeclaredTensor& tensor) { Placement(scope()).PlanAll({tensor.agreement}); }
  void Answer(const Server& server, DeclaredTensor* tensor) {
    Placement(scope()).TakeAnswer(server, tensor, /*settled=*/true);
    Placement(scope()).PublishAnswered();
  }
  void Refuse(const Server& server, DeclaredTensor* tensor) {
    Placement(scope()).TakeRefusal(server, tensor, "no memory");
    Answer(server, tensor);
  }
};

TEST_F(PlacementTest, TensorIsPublishedWhenAllItsServersHaveAnswered) {
  const Server& first = AddServer();
  const Server& second = AddServer();
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  EXPECT_EQ(tensor.stage, Stages::RESERVING);
  EXPECT_TRUE(Asks(first.id) && Asks(second.id));
  EXPECT_EQ(Broadcast(), nullptr);
  Answer(first, &tensor);
  EXPECT_EQ(Broadcast(), nullptr) << "the second server has not answered";
  Answer(second, &tensor);
  EXPECT_EQ(tensor.stage, Stages::PLANNED);
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->tensors_size(), 1);
  EXPECT_EQ(Broadcast()->servers_size(), 2);
}

TEST_F(PlacementTest, TensorsThatAreAnsweredTogetherAreToldTogether) {
  const Server& server = AddServer();
  DeclaredTensor& a = Declared("a", 1000);
  DeclaredTensor& b = Declared("b", 1000);
  Placement(scope()).PlanAll({a.agreement, b.agreement});
  Placement placement(scope());
  placement.TakeAnswer(server, &a, true);
  placement.TakeAnswer(server, &b, true);
  EXPECT_EQ(Broadcast(), nullptr);
  placement.PublishAnswered();
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->tensors_size(), 2);
  EXPECT_EQ(Broadcast()->servers_size(), 1);
  EXPECT_TRUE(job_.current.told.answered.empty());
}

TEST_F(PlacementTest, WhileOthersWaitForTheirServersNodesAreToldNowAndThen) {
  const Server& server = AddServer();
  DeclaredTensor& a = Declared("a", 1000);
  DeclaredTensor& b = Declared("b", 1000);
  DeclaredTensor& c = Declared("c", 1000);
  Placement(scope()).PlanAll({a.agreement, b.agreement, c.agreement});
  Answer(server, &a);
  EXPECT_EQ(a.stage, Stages::PLANNED) << "nothing was told for long";
  NextEvent(absl::Microseconds(499));  // 250 us for each of two nodes
  Answer(server, &b);
  EXPECT_EQ(Broadcast(), nullptr);
  NextEvent(absl::Microseconds(1));
  Placement(scope()).PublishAnswered();
  ASSERT_NE(Broadcast(), nullptr);
  NextEvent(absl::Microseconds(1));
  Answer(server, &c);
  EXPECT_NE(Broadcast(), nullptr) << "no other tensor waits";
}

TEST_F(PlacementTest, AnsweredTensorWhoseServerIsLostIsPlannedAgainBeforeNodesHearOfIt) {
  const Server& first = AddServer();
  const ServerId lost = AddServer().id;
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  Placement placement(scope());
  placement.TakeAnswer(first, &tensor, true);
  placement.TakeAnswer(*fleet_.Find(lost), &tensor, true);
  fleet_.Remove(lost);
  placement.LoseReservation(lost, &tensor);
  placement.PublishAnswered();
  EXPECT_EQ(tensor.stage, Stages::RESERVING);
  EXPECT_EQ(Broadcast(), nullptr);
  Answer(first, &tensor);
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->tensors_size(), 1) << "once, though it was answered twice";
}

TEST_F(PlacementTest, ServersThatARestartedSchedulerHasNotHeardAreUsedOnlyWithoutRoomElsewhere) {
  const Server& heard = AddServer(1 << 20);
  Server& unheard = AddServer(1 << 20);
  unheard.lease = Leases(absl::Seconds(5), now_).Restored(now_);
  DeclaredTensor& small = Declared("small", 5000);
  DeclaredTensor& large = Declared("large", 200'000);
  Placement(scope()).PlanAll({small.agreement, large.agreement});
  EXPECT_TRUE(small.owned.contains(heard.id));
  EXPECT_FALSE(small.owned.contains(unheard.id)) << "though the batch is planned one by one";
  EXPECT_TRUE(large.owned.contains(unheard.id));
}

TEST_F(PlacementTest, RefusedTensorIsPlannedAgainWithLess) {
  Server& small = AddServer(1 << 20);
  const Server& large = AddServer(1 << 20);
  DeclaredTensor& tensor = Declared("w", 20000);
  Plan(tensor);
  const uint32_t id = tensor.plan.tensor_id();
  const uint64_t asked = tensor.owned.at(small.id).accumulator_bytes;
  ASSERT_GT(asked, 0u);
  Answer(large, &tensor);
  Refuse(small, &tensor);
  EXPECT_EQ(tensor.stage, Stages::RESERVING);
  EXPECT_NE(tensor.plan.tensor_id(), id) << "every attempt has its own number";
  ASSERT_TRUE(tensor.awaited.contains(small.id));
  EXPECT_LT(tensor.owned.at(small.id).accumulator_bytes, asked);
  Answer(large, &tensor);
  Refuse(small, &tensor);
  EXPECT_EQ(PartitionsAt(tensor, small.id), 0) << "a server is not asked a third time";
}

TEST_F(PlacementTest, MemoryOfARefusedPlanIsReleased) {
  Server& server = AddServer(1 << 20);
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  EXPECT_LT(server.free_bytes, 1u << 20);
  Refuse(server, &tensor);
  EXPECT_EQ(tensor.stage, Stages::REFUSED) << "there is no other server";
  EXPECT_EQ(job_.current.partitions, 0u);
  EXPECT_EQ(job_.current.loads[{}][server.id].bytes, 0u);
}

TEST_F(PlacementTest, TensorWithoutAServerIsRefusedForAllNodes) {
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  EXPECT_EQ(tensor.stage, Stages::REFUSED);
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_EQ(Broadcast()->errors(0).exit_code(), TellFailure(FailureKind::kResources).exit_status);
  EXPECT_THAT(Broadcast()->errors(0).message(), HasSubstr("there is no summation server"));
}

TEST_F(PlacementTest, TensorWithoutRoomIsRefusedAloneAndTheOthersArePlanned) {
  AddServer(1 << 16);
  const DeclaredTensor& small = Declared("small", 1000);
  const DeclaredTensor& large = Declared("large", 1 << 20);
  Placement(scope()).PlanAll({small.agreement, large.agreement});
  EXPECT_EQ(small.stage, Stages::RESERVING);
  EXPECT_EQ(large.stage, Stages::REFUSED);
}

TEST_F(PlacementTest, NothingIsPlannedInAFailedGeneration) {
  AddServer();
  const DeclaredTensor& tensor = Declared("w", 5000);
  job_.current.state = v1::FAILED;
  Plan(tensor);
  EXPECT_EQ(tensor.stage, Stages::COLLECTING);
}

TEST_F(PlacementTest, LostReservationIsPlannedAtTheOtherServers) {
  const Server& first = AddServer();
  const ServerId lost = AddServer().id;
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  Answer(first, &tensor);
  fleet_.Remove(lost);
  Placement(scope()).LoseReservation(lost, &tensor);
  EXPECT_EQ(tensor.stage, Stages::RESERVING);
  EXPECT_EQ(PartitionsAt(tensor, first.id), tensor.plan.servers_size());
}

TEST_F(PlacementTest, OwnerThatNoLongerHoldsAPublishedTensorFailsTheJob) {
  const Server& server = AddServer();
  DeclaredTensor& tensor = Published("w", 5000);
  Placement(scope()).TakeRefusal(server, &tensor, "memory lost");
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(job_.current.failure.name, TraitsOf(FailureKind::kInternal).name);
}

class DeclarationsTest : public PlacementTest {
 protected:
  void Declare(uint32_t node, const v1::TensorDescriptor& descriptor) {
    Declarations declarations(scope());
    declarations.Declare(NodeId(node), descriptor, 1);
    declarations.Plan();
  }
  void Undeclare(uint32_t node, const std::string& name) {
    Declarations declarations(scope());
    declarations.Undeclare(NodeId(node), name);
    declarations.Plan();
  }
  const v1::NodeUpdate& Single(uint32_t node) { return changes_->Single(job_.id, NodeId(node)); }
};

TEST_F(DeclarationsTest, TensorIsReservedWhenTheLastNodeHasDeclaredIt) {
  AddServer();
  Declare(0, Descriptor("w", 5000));
  EXPECT_EQ(job_.current.tensors.Front("w")->stage, Stages::COLLECTING);
  Declare(1, Descriptor("w", 5000));
  EXPECT_EQ(job_.current.tensors.Front("w")->stage, Stages::RESERVING);
}

TEST_F(DeclarationsTest, DifferingDeclarationsAreRefusedForAllNodes) {
  Declare(0, Descriptor("w", 5000));
  Declare(1, Descriptor("w", 6000));
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_THAT(Broadcast()->errors(0).message(), HasSubstr("all ranks must declare the same"));
}

TEST_F(DeclarationsTest, RanksOfANodeThatDifferAreAMismatchForAllNodes) {
  Declare(0, Descriptor("w", 5000));
  Declare(0, Descriptor("w", 6000));
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_THAT(Broadcast()->errors(0).message(),
              HasSubstr("[5000] sum and as float32 [6000] sum by ranks of node 0"));
  Declare(1, Descriptor("w", 5000));
  EXPECT_EQ(Single(1).errors(0).message(), Broadcast()->errors(0).message());
}

TEST_F(DeclarationsTest, TensorIsNotPlannedIfARankDiffersInTheSameBatch) {
  AddServer();
  Declare(0, Descriptor("w", 5000));
  Declarations declarations(scope());
  declarations.Declare(NodeId(1), Descriptor("w", 5000), 1);
  declarations.Declare(NodeId(1), Descriptor("w", 6000), 1);
  declarations.Plan();
  EXPECT_EQ(job_.current.tensors.Front("w")->stage, Stages::REFUSED);
}

TEST_F(DeclarationsTest, PlanOfATensorWhoseRanksDifferIsGivenUpBeforeTheNodesKnowIt) {
  Server& server = AddServer(1 << 20);
  Declare(0, Descriptor("w", 5000));
  Declare(1, Descriptor("w", 5000));
  ASSERT_EQ(job_.current.tensors.Front("w")->stage, Stages::RESERVING);
  Declare(1, Descriptor("w", 6000));
  EXPECT_EQ(job_.current.tensors.Front("w")->stage, Stages::REFUSED);
  EXPECT_EQ(server.free_bytes, 1u << 20);
  Undeclare(0, "w");
  Undeclare(1, "w");
  EXPECT_TRUE(job_.current.tensors.empty());
}

TEST_F(DeclarationsTest, RankThatDiffersFromATensorInUseFailsItForAllNodes) {
  AddServer();
  Published("w", 5000);
  Declare(1, Descriptor("w", 6000));
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_THAT(Broadcast()->errors(0).message(), HasSubstr("by ranks of node 1"));
}

TEST_F(DeclarationsTest, RepeatedDeclarationIsAnsweredWithThePlanForThatNodeAlone) {
  AddServer();
  Published("w", 5000);
  Declare(1, Descriptor("w", 5000));
  EXPECT_EQ(Single(1).tensors_size(), 1);
  EXPECT_EQ(Single(0).tensors_size(), 0);
  EXPECT_EQ(Broadcast(), nullptr);
}

TEST_F(DeclarationsTest, TensorThatCannotBeSummedIsRefusedForItsDeclarer) {
  Declare(0, Descriptor("w", -1));
  EXPECT_EQ(Single(0).errors(0).kind(), TraitsOf(FailureKind::kMismatch).name);
  EXPECT_TRUE(job_.current.tensors.empty());
}

TEST_F(DeclarationsTest, TensorEndsWhenTheLastNodeHasUndeclaredIt) {
  Server& server = AddServer(1 << 20);
  const uint32_t id = Published("w", 5000).plan.tensor_id();
  Undeclare(0, "w");
  EXPECT_FALSE(job_.current.tensors.empty());
  Undeclare(1, "w");
  EXPECT_TRUE(job_.current.tensors.empty());
  EXPECT_EQ(Broadcast()->removed(0), id);
  EXPECT_EQ(server.free_bytes, 1u << 20);
  EXPECT_EQ(changes_->ReleasesFor(server.id, job_.id)->release_tensors(0), id);
}

TEST_F(DeclarationsTest, TensorsThatWaitedForAGoneNodeGoOnOrEnd) {
  AddServer();
  Published("old", 5000);
  Undeclare(0, "old");
  Declare(0, Descriptor("new", 5000));
  job_.current.gone[NodeId(1)] = "lost";
  Declarations declarations(scope());
  declarations.GoOnWithout();
  declarations.Plan();
  EXPECT_EQ(job_.current.tensors.Front("old"), nullptr);
  EXPECT_EQ(job_.current.tensors.Front("new")->stage, Stages::RESERVING);
}

class ReservationsTest : public PlacementTest {
 protected:
  v1::AckReservationRequest AnswerTo(uint64_t update, uint64_t free_bytes) {
    v1::AckReservationRequest answer;
    answer.set_update_id(update);
    answer.set_free_bytes(free_bytes);
    return answer;
  }
};

TEST_F(ReservationsTest, AnswerToASupersededUpdateIsIgnored) {
  Server& server = AddServer(1 << 20);
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  Reservations reservations(&fleet_, &jobs_, &*changes_);
  server.unanswered[8] = {{job_.id, TensorId(tensor.plan.tensor_id())}};
  reservations.TakeAnswer(AnswerTo(7, 5), &server);
  EXPECT_NE(server.free_bytes, 5u);
  EXPECT_EQ(tensor.stage, Stages::RESERVING);
  reservations.TakeAnswer(AnswerTo(8, 5), &server);
  EXPECT_EQ(server.free_bytes, 5u);
  Placement(scope()).PublishAnswered();
  EXPECT_EQ(tensor.stage, Stages::PLANNED);
}

TEST_F(ReservationsTest, ServersCountOfFreeBytesIsReducedByReservationsOnTheirWay) {
  Server& server = AddServer(1 << 20);
  DeclaredTensor& tensor = Declared("w", 5000);
  Plan(tensor);
  const uint64_t bytes = tensor.owned.at(server.id).accumulator_bytes;
  server.unanswered[7] = {};
  server.unanswered[8] = {{job_.id, TensorId(tensor.plan.tensor_id())}};
  Reservations(&fleet_, &jobs_, &*changes_).TakeAnswer(AnswerTo(7, 1 << 20), &server);
  EXPECT_EQ(server.free_bytes, (1 << 20) - bytes);
}

}  // namespace
}  // namespace addend
