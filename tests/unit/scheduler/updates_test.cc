// What servers and nodes are told of the state.
#include "services/scheduler/updates.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Stages = v1::AgreementRecord;

// Two nodes, two servers, and the published tensor "w" of five partitions.
class UpdatesTest : public JobScopeTest {
 protected:
  UpdatesTest() {
    AddNodes(2);
    first_ = AddServer().id;
    second_ = AddServer().id;
    job_.key = "key";
    tensor_ = &Published("w", 5000);
  }
  // A partition of the first server is to move to the second, as version 9.
  uint32_t Move() {
    uint32_t index = 0;
    while (tensor_->plan.servers(static_cast<int>(index)) != first_.value()) ++index;
    v1::PartitionMove& move = *tensor_->plan.add_moves();
    move.set_partition(index);
    move.set_server(second_.value());
    move.set_version(9);
    Owned& owned = tensor_->owned[second_];
    owned.partitions.push_back(index);
    owned.shards.push_back(0);
    return index;
  }
  v1::NodeUpdate State() const {
    v1::NodeUpdate update;
    FillState(job_, &update);
    return update;
  }
  // The update that the node gets of one to all.
  v1::NodeUpdate AsSeen(uint32_t rank) {
    auto all = std::make_shared<v1::NodeUpdate>(FullNodeUpdate(&job_, fleet_));
    all->add_errors()->set_name("e");
    all->add_removed(77);
    return *AsSeenBy(job_, job_.nodes.at(NodeId(rank)), all);
  }

  ServerId first_, second_;
  DeclaredTensor* tensor_ = nullptr;
};

TEST_F(UpdatesTest, ReservationNamesTheServersPartitionsAndShards) {
  v1::JobReservation job;
  AddReservation(*tensor_, first_, tensor_->owned.at(first_), job_.settings.num_nodes(), &job);
  ASSERT_EQ(job.reserve_size(), 1);
  const v1::TensorReservation& reserved = job.reserve(0);
  EXPECT_EQ(reserved.tensor_id(), tensor_->plan.tensor_id());
  EXPECT_EQ(reserved.tensor().name(), "w");
  EXPECT_EQ(reserved.partition_elements(), tensor_->plan.partition_elements());
  EXPECT_THAT(reserved.partitions(), SizeIs(PartitionsAt(*tensor_, first_)));
  EXPECT_EQ(reserved.shards_size(), reserved.partitions_size());
  EXPECT_EQ(reserved.versions_size(), 0) << "it is the first owner of all";
}

TEST_F(UpdatesTest, ReservationOfAMovedPartitionSaysWhetherItIsHandedOver) {
  const uint32_t moved = Move();
  v1::JobReservation job;
  AddReservation(*tensor_, first_, tensor_->owned.at(first_), job_.settings.num_nodes(), &job);
  AddReservation(*tensor_, second_, tensor_->owned.at(second_), job_.settings.num_nodes(), &job);
  for (int i = 0; i < job.reserve(0).partitions_size(); ++i) {
    EXPECT_FALSE(job.reserve(0).handed_over(i)) << "the present owner keeps it so far";
    EXPECT_EQ(job.reserve(0).versions(i), 0u);
  }
  for (int i = 0; i < job.reserve(1).partitions_size(); ++i) {
    const bool handed_over = job.reserve(1).partitions(i) == moved;
    EXPECT_EQ(job.reserve(1).handed_over(i), handed_over);
    EXPECT_EQ(job.reserve(1).versions(i), handed_over ? 9u : 0u);
  }
}

TEST_F(UpdatesTest, ReservationOfALaterOwnerHasTheVersionOfThePlan) {
  SetOwner(&tensor_->plan, 1, {first_, 0}, 7);
  v1::JobReservation job;
  AddReservation(*tensor_, first_, {.partitions = {0, 1}, .shards = {0, 0}},
                 job_.settings.num_nodes(), &job);
  EXPECT_THAT(job.reserve(0).versions(), ElementsAre(0, 7));
  EXPECT_THAT(job.reserve(0).handed_over(), ElementsAre(false, false));
}

TEST_F(UpdatesTest, HandOverIsOrderedFromThePresentOwnerInItsPhase) {
  const uint32_t moved = Move();
  v1::JobReservation job;
  for (const auto phase : {Change::Phase::kReserving, Change::Phase::kAnnounced}) {
    job_.current.change.phase = phase;
    AddHandOvers(job_, *tensor_, first_, &job);
  }
  EXPECT_EQ(job.hand_over_size(), 0);
  job_.current.change.phase = Change::Phase::kHandingOver;
  AddHandOvers(job_, *tensor_, second_, &job);
  EXPECT_EQ(job.hand_over_size(), 0) << "it takes over";
  AddHandOvers(job_, *tensor_, first_, &job);
  ASSERT_EQ(job.hand_over_size(), 1);
  EXPECT_EQ(job.hand_over(0).version(), 9u);
  EXPECT_EQ(job.hand_over(0).partitions().tensor_id(), tensor_->plan.tensor_id());
  EXPECT_THAT(job.hand_over(0).partitions().partitions(), ElementsAre(moved));
}

TEST_F(UpdatesTest, ServersKnowTheJobsGenerationKeyAndLostNodes) {
  job_.current.state = v1::FAILED;
  job_.current.gone[NodeId(1)] = "lost";
  v1::JobReservation job;
  job.add_lost_nodes(0);
  FillJob(job_, &job);
  EXPECT_EQ(job.job_id(), job_.id.value());
  EXPECT_EQ(job.job_name(), "a");
  EXPECT_EQ(job.generation(), 1u);
  EXPECT_EQ(job.plan_version(), job_.plan_version.value());
  EXPECT_EQ(job.key(), "key");
  EXPECT_EQ(job.num_nodes(), 2u);
  EXPECT_EQ(job.local_size(), 1u);
  EXPECT_TRUE(job.failed());
  EXPECT_THAT(job.lost_nodes(), ElementsAre(1));
  job_.current.state = v1::READY;
  FillJob(job_, &job);
  EXPECT_FALSE(job.failed());
}

TEST_F(UpdatesTest, FullUpdateOfAServerHasItsJobsAndAwaitsItsAnswers) {
  jobs_.Create("b").avoided[first_] = absl::InfiniteFuture();
  std::vector<std::pair<JobId, TensorId>> awaited;
  const v1::ServerUpdate update = FullServerUpdate(*fleet_.Find(first_), jobs_, &awaited);
  EXPECT_TRUE(update.full());
  ASSERT_EQ(update.jobs_size(), 1) << "job b does not use it";
  EXPECT_EQ(update.jobs(0).job_name(), "a");
  EXPECT_EQ(update.jobs(0).reserve_size(), 1);
  EXPECT_THAT(awaited, ElementsAre(std::pair(job_.id, TensorId(tensor_->plan.tensor_id()))));
}

TEST_F(UpdatesTest, ServerThatOwnsNothingOfATensorAnswersOnlyIfNodesWaitForIt) {
  tensor_->owned.erase(first_);
  std::vector<std::pair<JobId, TensorId>> awaited;
  EXPECT_EQ(FullServerUpdate(*fleet_.Find(first_), jobs_, &awaited).jobs(0).reserve_size(), 0);
  EXPECT_THAT(awaited, IsEmpty());
  tensor_->recovering.insert(first_);
  FullServerUpdate(*fleet_.Find(first_), jobs_, &awaited);
  EXPECT_THAT(awaited, SizeIs(1));
}

TEST_F(UpdatesTest, NodesLearnOfMovesWhenTheOwnersToBeAreReady) {
  Move();
  EXPECT_EQ(PlanForNodes(job_, *tensor_).moves_size(), 0);
  job_.current.change.phase = Change::Phase::kAnnounced;
  EXPECT_EQ(PlanForNodes(job_, *tensor_).moves_size(), 1);
  job_.current.change.phase = Change::Phase::kReserving;
  job_.current.change.restored = true;
  EXPECT_EQ(PlanForNodes(job_, *tensor_).moves_size(), 1) << "they may know of them";
}

TEST_F(UpdatesTest, MovesAreHeldBackWhileNewOwnersOfTheTensorHaveNotAnswered) {
  job_.current.change.number = 1;
  EXPECT_EQ(State().change(), 1u);
  tensor_->recovering.insert(first_);
  EXPECT_FALSE(MovesAreHeldBack(job_)) << "nothing moves";
  Move();
  EXPECT_TRUE(MovesAreHeldBack(job_));
  EXPECT_EQ(State().change(), 0u);
  tensor_->recovering.clear();
  EXPECT_FALSE(MovesAreHeldBack(job_));
  EXPECT_EQ(State().change(), 1u);
}

TEST_F(UpdatesTest, MovesOfATensorAreFoundByPartition) {
  const uint32_t moved = Move();
  const auto moves = MovesOf(*tensor_);
  ASSERT_THAT(moves, SizeIs(1));
  EXPECT_EQ(moves.at(moved).version(), 9u);
}

TEST_F(UpdatesTest, DrainingServerIsDrainedWhenNoRunningJobHasPartitionsThere) {
  Server& server = *fleet_.Find(first_);
  EXPECT_FALSE(IsDrained(server, jobs_)) << "it is not draining";
  server.draining = true;
  EXPECT_FALSE(IsDrained(server, jobs_));
  job_.current.state = v1::FAILED;
  EXPECT_TRUE(IsDrained(server, jobs_));
  job_.current.state = v1::READY;
  tensor_->owned.erase(first_);
  EXPECT_TRUE(IsDrained(server, jobs_));
}

TEST_F(UpdatesTest, NodesGetTheAddressesOfTheServersOfThePlan) {
  Server& server = *fleet_.Find(first_);
  server.info.add_endpoints()->set_port(7171);
  server.info.set_colocated_node(1);
  fleet_.Remove(second_);
  v1::NodeUpdate update;
  update.add_servers()->set_server_id(99);
  FillServers(&job_, fleet_, &update);
  ASSERT_EQ(update.servers_size(), 1) << "the others have gone";
  const v1::ServerInfo& info = update.servers(0);
  EXPECT_EQ(info.server_id(), first_.value());
  EXPECT_EQ(info.incarnation(), server.info.incarnation());
  EXPECT_EQ(info.hostname(), server.info.hostname());
  EXPECT_EQ(info.shards(), 1u);
  EXPECT_EQ(info.endpoints(0).port(), 7171u);
  EXPECT_FALSE(info.colocated());
  EXPECT_EQ(info.colocated_node(), 1u);
}

std::vector<uint32_t> NamesIn(const v1::NodeUpdate& update) {
  std::vector<uint32_t> names;
  for (const v1::ServerInfo& server : update.servers()) names.push_back(server.server_id());
  return names;
}

TEST_F(UpdatesTest, NodesHearOnlyWhatHasChangedOfTheServers) {
  const uint32_t third = AddServer().id.value();
  job_.current.plan_servers.insert(ServerId(third));
  job_.current.plan_servers.erase(first_);
  v1::NodeUpdate update;
  TellServers(&job_, fleet_, &update);
  EXPECT_TRUE(update.servers_are_changes());
  EXPECT_THAT(NamesIn(update), ElementsAre(third));
  EXPECT_THAT(update.servers_gone(), ElementsAre(first_.value()));
  v1::NodeUpdate next;
  TellServers(&job_, fleet_, &next);
  EXPECT_EQ(next.servers_size() + next.servers_gone_size(), 0);
  EXPECT_EQ(job_.current.told.servers, job_.current.plan_servers);
}

TEST_F(UpdatesTest, ServerThatASingleNodeWasToldOfIsTakenBackFromAll) {
  const ServerId third = AddServer().id;
  job_.current.plan_servers.insert(third);
  FullNodeUpdate(&job_, fleet_);  // of a new watch
  job_.current.plan_servers.erase(third);
  v1::NodeUpdate update;
  TellServers(&job_, fleet_, &update);
  EXPECT_THAT(update.servers_gone(), ElementsAre(third.value()));
}

TEST_F(UpdatesTest, NodeThatDoesNotKnowChangesGetsAllServersAndSoDoTheOthers) {
  job_.nodes.at(NodeId(1)).info.set_takes_server_changes(false);
  v1::NodeUpdate update;
  TellServers(&job_, fleet_, &update);
  EXPECT_FALSE(update.servers_are_changes());
  EXPECT_THAT(NamesIn(update), ElementsAre(first_.value(), second_.value()));
}

TEST_F(UpdatesTest, NodesKnowTheStateOfTheJob) {
  job_.current.state = v1::FAILED;
  job_.current.reason = "why";
  job_.current.failure = TellFailure(FailureKind::kMismatch);
  job_.current.gone[NodeId(1)] = "lost";
  job_.optimal_s_per_byte = 0.5;
  v1::NodeUpdate update;
  update.add_lost_nodes(0);
  FillState(job_, &update);
  EXPECT_EQ(update.generation(), 1u);
  EXPECT_EQ(update.state(), v1::FAILED);
  EXPECT_EQ(update.reason(), "why");
  EXPECT_EQ(update.exit_code(), 65);
  EXPECT_EQ(update.failed_kind(), "mismatch");
  EXPECT_EQ(update.plan_version(), job_.plan_version.value());
  EXPECT_EQ(update.change(), 0u);
  EXPECT_EQ(update.optimal_s_per_byte(), 0.5);
  EXPECT_THAT(update.lost_nodes(), ElementsAre(1));
}

TEST_F(UpdatesTest, IdleNodesWhoseTrainersAreThereWaitForTheNextGeneration) {
  job_.nodes.at(NodeId(0)).trainers = 0;
  for (auto& [rank, node] : job_.nodes) {
    EXPECT_EQ(State().waiting_nodes(), 0u);
    node.idle = true;
  }
  EXPECT_EQ(State().waiting_nodes(), 1u);
}

TEST_F(UpdatesTest, FullUpdateOfANodeHasPlansAndErrors) {
  DeclaredTensor& refused = Declared("r", 1);
  refused.stage = Stages::REFUSED;
  refused.error.set_name("r");
  Declared("c", 1);
  v1::NodeUpdate update = FullNodeUpdate(&job_, fleet_);
  EXPECT_TRUE(update.full());
  EXPECT_EQ(update.state(), v1::READY);
  EXPECT_EQ(update.servers_size(), 2);
  ASSERT_EQ(update.tensors_size(), 1) << "only that which is planned";
  EXPECT_EQ(update.tensors(0).tensor().name(), "w");
  ASSERT_EQ(update.errors_size(), 1);
  EXPECT_EQ(update.errors(0).name(), "r");
  tensor_->recovering.insert(first_);
  EXPECT_EQ(FullNodeUpdate(&job_, fleet_).tensors_size(), 0) << "its new owner has not answered";
}

TEST_F(UpdatesTest, NodeThatTakesPartSeesTheUpdateItself) {
  const auto update = std::make_shared<const v1::NodeUpdate>(FullNodeUpdate(&job_, fleet_));
  EXPECT_EQ(AsSeenBy(job_, job_.nodes.at(NodeId(0)), update), update);
  job_.nodes.at(NodeId(0)).idle = true;
  EXPECT_NE(AsSeenBy(job_, job_.nodes.at(NodeId(0)), update), update);
  job_.current.state = v1::FORMING;
  EXPECT_EQ(AsSeenBy(job_, job_.nodes.at(NodeId(0)), update), update);
}

TEST_F(UpdatesTest, GoneNodeLearnsOfItsFateAlone) {
  job_.current.gone[NodeId(1)] = "its trainer ended";
  const v1::NodeUpdate update = AsSeen(1);
  EXPECT_EQ(update.state(), v1::FAILED);
  EXPECT_EQ(update.reason(), "its trainer ended");
  EXPECT_EQ(update.failed_kind(), "peer_lost");
  EXPECT_EQ(update.exit_code(), 75);
  EXPECT_EQ(update.tensors_size(), 0);
  EXPECT_EQ(update.servers_size(), 0);
  EXPECT_EQ(update.removed_size(), 0);
  EXPECT_EQ(update.errors_size(), 0);
}

TEST_F(UpdatesTest, IdleNodeLearnsOfNewOwnersAndNotOfTheGenerationsFate) {
  job_.nodes.at(NodeId(1)).idle = true;
  job_.current.state = v1::FAILED;
  job_.current.failure = TellFailure(FailureKind::kMismatch);
  const v1::NodeUpdate update = AsSeen(1);
  EXPECT_EQ(update.state(), v1::FORMING);
  EXPECT_EQ(update.reason(), "waiting for the trainers of generation 1 on node 0 to end");
  EXPECT_EQ(update.exit_code(), 0);
  EXPECT_EQ(update.failed_kind(), "");
  EXPECT_EQ(update.errors_size(), 0);
  EXPECT_EQ(update.tensors_size(), 1);
  EXPECT_THAT(update.removed(), ElementsAre(77));
  job_.nodes.at(NodeId(0)).idle = true;
  EXPECT_EQ(AsSeen(1).reason(), "") << "no trainer is left";
}

}  // namespace
}  // namespace addend
