// The agent's life: before the scheduler is reached, through generations, to its end. Its machine
// has no thread and no socket.
#include "services/worker_agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/client/addend.h"
#include "tests/unit/shard/fake_event_loop.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeMachine final : public Machine {
 public:
  explicit FakeMachine(const NodeIdentity* node) : node_(node) {}
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string&) override {
    auto made = std::make_unique<FakeEventLoop>();
    loop = made.get();
    return made;
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop*) override {
    tcp = std::make_shared<FakeTransport>(loop->tasks(), node_, "tcp");
    return tcp;
  }
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address&,
                                                     std::vector<ShardEnd>) override {
    return absl::UnimplementedError("the agent listens on no port");
  }
  absl::Time ClusterNow() const override { return loop->Now(); }

  FakeEventLoop* loop = nullptr;
  std::shared_ptr<FakeTransport> tcp;

 private:
  const NodeIdentity* const node_;
};

// Node 1 of 2 nodes with two local ranks each.
class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    options_.num_nodes = 2;
    options_.local_size = 2;
    options_.job = "job";
    options_.node = NodeId(1);
    options_.incarnation = Incarnation(7);
    options_.hostname = "host";
    options_.advertise = "10.0.0.1";
    options_.stall_timeout = absl::Seconds(30);
    registration_.set_job_id(3);
    registration_.set_generation(1);
    registration_.set_lease_s(10);
    *registration_.mutable_token() = Token();
  }
  ~AgentTest() override {
    if (agent_ == nullptr) return;
    machine_.loop->Settle();
    agent_.reset();
  }
  void Start() {
    agent_ = *Agent::Create(options_, MakeInprocNetwork(),
                            {.machine = &machine_,
                             .node_is_free = [this] { ++freed_; },
                             .open_door = [this](EventLoop*, TrainerEvents* events)
                                 -> absl::StatusOr<std::unique_ptr<TrainerDoor>> {
                               events_ = events;
                               return std::make_unique<Door>(&doors_closed_);
                             }});
  }
  void Begin() { agent_->Begin(registration_, ServerId(), &reports_); }
  // The scheduler's update arrives.
  void Update(v1::NodeUpdate update) {
    agent_->OnUpdate(update);
    machine_.loop->Settle();
  }
  static v1::NodeUpdate UpdateOf(uint32_t generation, v1::JobState state) {
    v1::NodeUpdate update;
    update.set_generation(generation);
    update.set_state(state);
    update.set_reason("why");
    return update;
  }
  v1::NodeToken Token() const {
    v1::NodeToken token;
    token.set_expires_unix_s(identity_.token.expires_unix_s);
    token.set_secret(std::string(auth::TextOf(identity_.token.secret)));
    return token;
  }
  template <typename Typed>
  absl::Status Send(uint32_t rank, const Typed& message) {
    return events_->OnMessage(&trainers_[rank], message.Encode(), UniqueFd());
  }
  absl::Status Init(uint32_t rank) {
    const auto local = static_cast<int32_t>(rank);
    return Send(
        rank, ipc::InitMessage{.rank = 2 + local, .size = 4, .local_rank = local, .local_size = 2});
  }
  // Both trainers are ranks of the generation.
  void Run() {
    Start();
    Begin();
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Init(rank).ok());
    Update(UpdateOf(1, v1::READY));
  }
  // The trainers declare the tensor "t", which is planned at server 2.
  void DeclareAndPlan(uint32_t generation = 1) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(Send(rank, ipc::DeclareMessage{.shape = {2}, .text = "t"}).ok());
    }
    v1::NodeUpdate update = UpdateOf(generation, v1::READY);
    *update.add_servers() = FakeNode().AddServer(2);
    *update.add_tensors() = Plan();
    Update(update);
  }
  static v1::TensorPlan Plan() {
    v1::TensorPlan plan;
    plan.set_tensor_id(6);
    plan.mutable_tensor()->set_name("t");
    plan.set_partition_elements(2);
    plan.add_servers(2);
    plan.add_shards(0);
    return plan;
  }
  std::string Activity() {
    v1::HeartbeatRequest beat;
    agent_->FillBeat(&beat);
    return beat.activity();
  }

  class Door final : public TrainerDoor {
   public:
    explicit Door(int* closed) : closed_(*closed) {}
    ~Door() override { ++closed_; }

   private:
    int& closed_;
  };

  NodeIdentity identity_{.job = JobId(3),
                         .generation = Generation(1),
                         .node = NodeId(1),
                         .incarnation = Incarnation(7),
                         .token = {.expires_unix_s = 4'102'444'800, .secret = {std::byte{1}}}};
  FakeMachine machine_{&identity_};
  NodeOptions options_;
  v1::RegisterNodeResponse registration_;
  FakeReports reports_;
  FakeTrainer trainers_[2] = {FakeTrainer(100), FakeTrainer(101)};
  int doors_closed_ = 0;
  int freed_ = 0;
  TrainerEvents* events_ = nullptr;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentTest, TrainersWaitUntilTheJobIsReady) {
  Start();
  ASSERT_TRUE(Init(0).ok());
  EXPECT_EQ(trainers_[0].Last<ipc::ProgressMessage>().text,
            "the agent has not reached the scheduler yet");
  Begin();
  EXPECT_THAT(Activity(), HasSubstr("the agent waits for the scheduler's first word"));
  Update(UpdateOf(1, v1::FORMING));
  EXPECT_EQ(trainers_[0].Last<ipc::ProgressMessage>().text, "why");
  Update(UpdateOf(1, v1::READY));
  EXPECT_EQ(trainers_[0].Last<ipc::InitReplyMessage>().rank, 2);
  ASSERT_TRUE(Init(1).ok());
  EXPECT_EQ(trainers_[1].Last<ipc::InitReplyMessage>().rank, 3) << "at once";
  EXPECT_EQ(Activity(), "2 of 2 trainers connected, 0 rounds");
}

TEST_F(AgentTest, UpdateThatOvertakesTheRegistrationIsKept) {
  Start();
  ASSERT_TRUE(Init(0).ok());
  Update(UpdateOf(1, v1::READY));
  EXPECT_EQ(trainers_[0].types().back(), ipc::Type::kProgress);
  Begin();
  EXPECT_EQ(trainers_[0].types().back(), ipc::Type::kInitReply);
}

TEST_F(AgentTest, FirstMessageOfATrainerIsAnInit) {
  Run();
  FakeTrainer stranger;
  EXPECT_TRUE(absl::IsInvalidArgument(
      events_->OnMessage(&stranger, ipc::ShutdownMessage().Encode(), UniqueFd())));
  EXPECT_TRUE(absl::IsInvalidArgument(Init(0))) << "and there is one of a trainer";
}

TEST_F(AgentTest, NextGenerationTakesNewTrainers) {
  Run();
  DeclareAndPlan();
  EXPECT_TRUE(agent_->result_slots()->Find(Generation(1), "t").has_value());
  Update(UpdateOf(2, v1::FORMING));
  EXPECT_TRUE(absl::IsAborted(trainers_[0].closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(agent_->result_slots()->Find(Generation(1), "t").has_value());
  EXPECT_EQ(agent_->Snapshot().generation(), 2u);
  EXPECT_EQ(agent_->Snapshot().tensors(), 0u);
  Update(UpdateOf(1, v1::FAILED));
  EXPECT_EQ(agent_->Snapshot().generation(), 2u) << "an update of the former is too late";
  EXPECT_THAT(Activity(), HasSubstr("0 of 2 trainers connected"));
  FakeTrainer again(102);
  ASSERT_TRUE(
      events_
          ->OnMessage(
              &again,
              ipc::InitMessage{.rank = 2, .size = 4, .local_rank = 0, .local_size = 2}.Encode(),
              UniqueFd())
          .ok());
  Update(UpdateOf(2, v1::READY));
  EXPECT_EQ(again.types().back(), ipc::Type::kInitReply);
}

TEST_F(AgentTest, SchedulerThatFormsTheJobHearsOfTheWaitingTrainers) {
  Start();
  Begin();
  Update(UpdateOf(1, v1::READY));
  v1::NodeUpdate next = UpdateOf(2, v1::FORMING);
  Update(next);
  EXPECT_THAT(reports_.said, ElementsAre("trainers 0"));
  reports_.said.clear();
  Update(next);
  EXPECT_THAT(reports_.said, IsEmpty()) << "it knows";
  next.set_full(true);
  Update(next);
  EXPECT_THAT(reports_.said, ElementsAre("trainers 0")) << "it may have been started again";
}

// --node-rank=trainers.
TEST_F(AgentTest, NodeOfTheTrainersIsFreeWhenTheirGenerationIsOverOnAllNodes) {
  options_.node = std::nullopt;
  Start();
  EXPECT_EQ(agent_->node(), std::nullopt);
  ASSERT_TRUE(Init(1).ok());
  EXPECT_EQ(agent_->node(), NodeId(1));
  Begin();
  EXPECT_EQ(agent_->Snapshot().node_rank(), 1u);
  ASSERT_TRUE(Init(0).ok());
  Update(UpdateOf(1, v1::READY));
  for (FakeTrainer& trainer : trainers_) {
    ASSERT_TRUE(events_->OnMessage(&trainer, ipc::ShutdownMessage().Encode(), UniqueFd()).ok());
    events_->OnTrainerGone(&trainer, absl::UnavailableError("its socket closed"));
  }
  machine_.loop->Pass(absl::Seconds(10));
  EXPECT_EQ(freed_, 0) << "other nodes may still need a result of this node's server";
  Update(UpdateOf(2, v1::FORMING));
  machine_.loop->Pass(absl::Seconds(10));
  EXPECT_EQ(freed_, 1);
  EXPECT_EQ(doors_closed_, 1) << "before a trainer could come that would be refused";
}

TEST_F(AgentTest, TrainerOfAnotherNodeThatComesEarlyIsLetGoWithTheDoor) {
  options_.node = std::nullopt;
  Start();
  ASSERT_TRUE(Init(0).ok());
  events_->OnTrainerGone(&trainers_[0], absl::UnavailableError("its socket closed"));
  FakeTrainer early(102);
  ASSERT_TRUE(
      events_
          ->OnMessage(
              &early,
              ipc::InitMessage{.rank = 0, .size = 4, .local_rank = 0, .local_size = 2}.Encode(),
              UniqueFd())
          .ok());
  machine_.loop->Pass(absl::Seconds(2));
  EXPECT_EQ(doors_closed_, 1);
  agent_->RefuseTrainers(absl::UnavailableError("the agent ends"), absl::ZeroDuration());
  EXPECT_THAT(early.types(), Each(ipc::Type::kProgress)) << "it comes to the next agent";
}

TEST_F(AgentTest, NodeOfATrainerThatIsGoneBeforeTheJobBeginsIsFree) {
  options_.node = std::nullopt;
  Start();
  machine_.loop->Pass(absl::Seconds(10));
  EXPECT_EQ(freed_, 0) << "nobody has said it";
  ASSERT_TRUE(Init(0).ok());
  machine_.loop->Pass(absl::Seconds(10));
  EXPECT_EQ(freed_, 0);
  events_->OnTrainerGone(&trainers_[0], absl::UnavailableError("its socket closed"));
  machine_.loop->Pass(absl::Seconds(2));
  EXPECT_EQ(freed_, 1);
}

TEST_F(AgentTest, NodeOfTheOptionsIsNeverFree) {
  Start();
  ASSERT_TRUE(Init(0).ok());
  events_->OnTrainerGone(&trainers_[0], absl::UnavailableError("its socket closed"));
  machine_.loop->Pass(absl::Seconds(10));
  EXPECT_EQ(freed_, 0);
}

// A scheduler that hears that a node is idle forgets the node's trainers.
TEST_F(AgentTest, SchedulerThatDoesNotKnowOfAnIdleNodeHearsOfItsWaitingTrainersLast) {
  Run();
  Update(UpdateOf(1, v1::FAILED));
  for (FakeTrainer& trainer : trainers_) {
    events_->OnTrainerGone(&trainer, absl::UnavailableError("its socket closed"));
  }
  machine_.loop->Settle();
  ASSERT_THAT(reports_.said, Contains("idle"));
  Update(UpdateOf(1, v1::FORMING));  // it waits for the other nodes
  reports_.said.clear();
  v1::NodeUpdate update = UpdateOf(1, v1::FAILED);  // the scheduler had lost it meanwhile
  update.set_full(true);
  Update(update);
  EXPECT_THAT(reports_.said, ElementsAre("idle", "trainers 0"));
}

TEST_F(AgentTest, SchedulerThatSendsTheWholeStateHearsTheDeclarationsAgain) {
  Run();
  ASSERT_TRUE(Send(0, ipc::DeclareMessage{.shape = {2}, .text = "t"}).ok());
  reports_.said.clear();
  v1::NodeUpdate update = UpdateOf(1, v1::READY);
  Update(update);
  EXPECT_THAT(reports_.said, IsEmpty());
  update.set_full(true);
  Update(update);
  EXPECT_THAT(reports_.said, ElementsAre("declare t"));
}

TEST_F(AgentTest, LinksAreMadeWithTheTokenOfTheRegistration) {
  Run();
  DeclareAndPlan();
  ASSERT_EQ(machine_.tcp->attempts.size(), 1u);
  machine_.tcp->Open();
  EXPECT_TRUE(agent_->Snapshot().links(0).connected());
}

TEST_F(AgentTest, LaterLinksAreMadeWithTheTokenOfTheLastUpdate) {
  Run();
  identity_.token.secret = {std::byte{2}};
  identity_.token.expires_unix_s += 60;
  v1::NodeUpdate update = UpdateOf(1, v1::READY);
  *update.mutable_token() = Token();
  Update(update);
  Update(UpdateOf(1, v1::READY));
  DeclareAndPlan();
  machine_.tcp->Open();
  EXPECT_TRUE(agent_->Snapshot().links(0).connected());
}

TEST_F(AgentTest, LinksAreEncryptedIfTheOptionsSaySo) {
  options_.encrypt_data = true;
  identity_.encrypt = true;
  Run();
  DeclareAndPlan();
  machine_.tcp->Open();
  EXPECT_TRUE(agent_->Snapshot().links(0).connected());
}

TEST_F(AgentTest, ColocatedServerIsReachedInTheProcess) {
  Start();
  agent_->Begin(registration_, ServerId(2), &reports_);
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(Init(rank).ok());
  Update(UpdateOf(1, v1::READY));
  DeclareAndPlan();
  EXPECT_THAT(machine_.tcp->attempts, IsEmpty());
  EXPECT_EQ(agent_->Snapshot().links(0).transport(), "inproc");
}

TEST_F(AgentTest, WaitingTrainersAreCheckedEverySecond) {
  Start();
  Begin();
  ASSERT_TRUE(Init(0).ok());
  machine_.loop->Pass(absl::Seconds(29));
  EXPECT_EQ(trainers_[0].types().back(), ipc::Type::kProgress);
  machine_.loop->Pass(absl::Seconds(1));
  EXPECT_THAT(trainers_[0].Last<ipc::InitReplyMessage>().reason, HasSubstr("has not begun within"));
}

TEST_F(AgentTest, OpenRoundsAreCheckedEverySecond) {
  Run();
  DeclareAndPlan();
  ASSERT_TRUE(Send(0, ipc::PushMessage{.tensor = 1, .round = 1}).ok());
  machine_.loop->Pass(absl::Seconds(29));
  EXPECT_THAT(reports_.said, Not(Contains(HasSubstr("failed"))));
  machine_.loop->Pass(absl::Seconds(1));
  EXPECT_THAT(reports_.said, Contains(HasSubstr("failed stalled")));
  EXPECT_EQ(agent_->Numbers().failures.at("stalled"), 1u);
}

TEST_F(AgentTest, StartedRoundAwaitsADecisionForALeaseOfTheRegistration) {
  Run();
  DeclareAndPlan();
  machine_.tcp->Open();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(Send(rank, ipc::PushMessage{.tensor = 1, .round = 1}).ok());
  }
  Update(UpdateOf(1, v1::FAILED));
  machine_.loop->Pass(absl::Seconds(9));
  EXPECT_NE(trainers_[0].types().back(), ipc::Type::kFailure);
  machine_.loop->Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[0].types().back(), ipc::Type::kFailure);
}

TEST_F(AgentTest, TrainerThatEndsFailsTheGeneration) {
  Run();
  events_->OnTrainerGone(&trainers_[1], absl::UnavailableError("its socket closed"));
  ASSERT_EQ(reports_.said.back(), "beat");
  reports_.said.pop_back();
  EXPECT_THAT(reports_.said.back(), HasSubstr("failed peer_lost: rank 3"));
}

TEST_F(AgentTest, WaitingTrainerThatEndsWaitsNoLonger) {
  Start();
  Begin();
  ASSERT_TRUE(Init(0).ok());
  events_->OnTrainerGone(&trainers_[0], absl::UnavailableError("its socket closed"));
  EXPECT_THAT(reports_.said, ElementsAre("trainers 1", "trainers 0"));
  Update(UpdateOf(1, v1::READY));
  EXPECT_EQ(trainers_[0].types().back(), ipc::Type::kProgress) << "nothing more is told";
}

TEST_F(AgentTest, AllTrainersHearThatTheProcessEnds) {
  Start();
  Begin();
  Update(UpdateOf(1, v1::READY));
  ASSERT_TRUE(Init(0).ok());
  Update(UpdateOf(1, v1::FORMING));
  ASSERT_TRUE(Init(1).ok());
  agent_->RefuseTrainers(absl::UnavailableError("the agent was stopped"), absl::Hours(1));
  EXPECT_EQ(trainers_[0].Last<ipc::FailureMessage>().reason, "the agent was stopped");
  EXPECT_EQ(trainers_[1].Last<ipc::InitReplyMessage>().reason, "the agent was stopped");
}

TEST_F(AgentTest, TrainerThatComesTooLateHearsThatTheProcessEnds) {
  Start();
  Begin();
  agent_->RefuseTrainers(absl::UnavailableError("the agent was stopped"), absl::ZeroDuration());
  ASSERT_TRUE(Init(0).ok());
  EXPECT_EQ(trainers_[0].Last<ipc::InitReplyMessage>().reason, "the agent was stopped");
}

TEST_F(AgentTest, EndedAgentReportsNothing) {
  Run();
  reports_.said.clear();
  agent_->End();
  ASSERT_TRUE(Send(0, ipc::DeclareMessage{.shape = {2}, .text = "t"}).ok());
  EXPECT_THAT(reports_.said, IsEmpty());
}

TEST_F(AgentTest, TraceIsOfItsJob) {
  Run();
  DeclareAndPlan();
  FakeLink* const link = machine_.tcp->Open();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(Send(rank, ipc::PushMessage{.tensor = 1, .round = 1}).ok());
  }
  machine_.loop->Settle();
  FrameHeader result;
  result.type = FrameType::kResult;
  result.job = JobId(3);
  result.generation = Generation(1);
  result.partition = PartitionId(TensorId(6), 0);
  result.round = Round(1);
  ASSERT_TRUE(link->Deliver(result, FloatBytes({1, 2})).ok());
  v1::TraceChunk chunk;
  agent_->FillTrace(JobId(3), 1, &chunk);
  EXPECT_EQ(chunk.lives_size(), 1);
  Update(UpdateOf(2, v1::READY));
  chunk.Clear();
  agent_->FillTrace(JobId(3), 1, &chunk);
  EXPECT_EQ(chunk.lives_size(), 1) << "until the next generation has a round";
}

TEST_F(AgentTest, EndOfTheAgentClosesItsDoorAndItsLinks) {
  Run();
  DeclareAndPlan();
  FakeLink* const link = machine_.tcp->Open();
  machine_.loop->Settle();
  agent_.reset();
  EXPECT_EQ(doors_closed_, 1);
  EXPECT_TRUE(absl::IsCancelled(link->closed.value_or(absl::OkStatus())));
  EXPECT_FALSE(trainers_[0].closed.has_value()) << "the door closes them";
}

TEST_F(AgentTest, SocketThatCannotBeOpenedIsAnError) {
  const auto agent = Agent::Create(options_, MakeInprocNetwork(), {.machine = &machine_});
  EXPECT_TRUE(absl::IsInvalidArgument(agent.status()));
  EXPECT_THAT(agent.status().message(), HasSubstr("a socket's path has 1 to"));
}

}  // namespace
}  // namespace addend
