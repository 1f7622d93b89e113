// Agreement on tensors, their plan, and servers that refuse.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/limits.h"
#include "lib/summation/table_bytes.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using TensorsTest = ClusterTest;

TEST_F(TensorsTest, TensorIsPlannedWhenTheLastNodeHasDeclaredIt) {
  AddCpuServer();
  const auto nodes = AddJob("a", 3);
  Declare(*nodes[0], {Tensor("w", {100000})});
  Declare(*nodes[2], {Tensor("w", {100000})});
  EXPECT_TRUE(nodes[0]->plans.empty());
  Declare(*nodes[1], {Tensor("w", {100000})});
  for (const FakeNode* node : nodes) {
    ASSERT_TRUE(node->plans.contains("w"));
    EXPECT_EQ(node->plans.at("w").SerializeAsString(), nodes[0]->plans.at("w").SerializeAsString());
  }
  EXPECT_EQ(nodes[0]->plans.at("w").servers_size(), 98);
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

TEST_F(TensorsTest, NodesMayDeclareInDifferentOrders) {
  const auto nodes = AddJob("a", 2);
  Declare(*nodes[0], {Tensor("u", {1000}), Tensor("v", {2000})});
  Declare(*nodes[1], {Tensor("v", {2000})});
  EXPECT_TRUE(nodes[0]->plans.contains("v"));
  EXPECT_FALSE(nodes[0]->plans.contains("u"));
  Declare(*nodes[1], {Tensor("u", {1000})});
  EXPECT_TRUE(nodes[0]->plans.contains("u"));
}

TEST_F(TensorsTest, SingleNodeSumsForItself) {
  AddCpuServer();
  const auto nodes = AddJob("a", 1);
  Declare(*nodes[0], {Tensor("w", {100000})});
  const v1::TensorPlan& plan = nodes[0]->plans.at("w");
  for (const uint32_t server : plan.servers()) EXPECT_EQ(server, ServerOf(*nodes[0])->id);
}

TEST_F(TensorsTest, TensorWithoutElementsHasNoPartitions) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("none", {3, 0, 4})});
  ASSERT_TRUE(nodes[1]->plans.contains("none"));
  EXPECT_EQ(nodes[1]->plans.at("none").servers_size(), 0);
  DeclareAll(nodes, {Tensor("scalar", {})});
  EXPECT_EQ(nodes[1]->plans.at("scalar").servers_size(), 1);
}

TEST_F(TensorsTest, MismatchNamesBothNodesAndShapes) {
  const auto nodes = AddJob("a", 3);
  Declare(*nodes[0], {Tensor("w", {3, 4})});
  Declare(*nodes[1], {Tensor("w", {4, 4})});
  for (const FakeNode* node : nodes) {
    ASSERT_TRUE(node->errors.contains("w"));
    EXPECT_EQ(node->errors.at("w").message(),
              "tensor 'w' is declared as float32 [3,4] sum by node 0 but as float32 [4,4] sum by "
              "node 1: all ranks must declare the same");
    EXPECT_EQ(node->errors.at("w").kind(), TraitsOf(FailureKind::kMismatch).name);
    EXPECT_EQ(node->errors.at("w").exit_code(), TellFailure(FailureKind::kMismatch).exit_status);
    EXPECT_EQ(node->state, v1::READY);
  }
}

TEST_F(TensorsTest, LateDeclarationOfARefusedTensorGetsTheErrorToo) {
  const auto nodes = AddJob("a", 3);
  Declare(*nodes[0], {Tensor("w", {3})});
  Declare(*nodes[1], {Tensor("w", {3}, v1::FLOAT64)});
  nodes[2]->errors.clear();
  Declare(*nodes[2], {Tensor("w", {3})});
  EXPECT_THAT(nodes[2]->errors.at("w").message(),
              AllOf(HasSubstr("float32 [3]"), HasSubstr("float64 [3]")));
}

// The node may have gone on to the next tensor of the name when it hears it.
TEST_F(TensorsTest, AnswerNamesTheDeclaration) {
  const auto nodes = AddJob("a", 2);
  Declare(*nodes[0], {Tensor("w", {3})}, 5);
  Declare(*nodes[1], {Tensor("w", {4})}, 6);
  EXPECT_EQ(nodes[0]->errors.at("w").number(), 0u) << "the refusal of all nodes";
  Declare(*nodes[0], {Tensor("w", {5})}, 5);
  EXPECT_EQ(nodes[0]->errors.at("w").number(), 5u);
  EXPECT_EQ(nodes[1]->errors.at("w").number(), 0u);
}

TEST_F(TensorsTest, RanksOfANodeThatDifferFailATensorThatIsInUseByItsId) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {3})});
  const uint32_t id = nodes[0]->plans.at("w").tensor_id();
  Declare(*nodes[1], {Tensor("w", {4})});
  for (const FakeNode* node : nodes) EXPECT_EQ(node->errors.at("w").tensor_id(), id);
}

TEST_F(TensorsTest, RanksOfANodeThatDifferAreHeardAfterTheFormerTensorOfTheName) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {3})});
  Undeclare(*nodes[1], "w");
  Declare(*nodes[1], {Tensor("w", {4})}, 2);
  Declare(*nodes[1], {Tensor("w", {5})}, 2);
  EXPECT_TRUE(nodes[0]->errors.empty()) << "it still uses the former one";
  Undeclare(*nodes[0], "w");
  for (const FakeNode* node : nodes) {
    EXPECT_THAT(node->errors.at("w").message(), AllOf(HasSubstr("[4]"), HasSubstr("[5]")));
  }
}

TEST_F(TensorsTest, OperationMustAgreeToo) {
  const auto nodes = AddJob("a", 2);
  auto average = Tensor("w", {3});
  average.set_op(v1::AVERAGE);
  Declare(*nodes[0], {Tensor("w", {3})});
  Declare(*nodes[1], {average});
  EXPECT_THAT(nodes[0]->errors.at("w").message(),
              AllOf(HasSubstr("[3] sum by node 0"), HasSubstr("[3] average by node 1")));
}

TEST_F(TensorsTest, NameOfARefusedTensorIsFreeAfterAllHaveUndeclaredIt) {
  const auto nodes = AddJob("a", 2);
  Declare(*nodes[0], {Tensor("w", {3})});
  Declare(*nodes[1], {Tensor("w", {4})});
  Undeclare(*nodes[0], "w");
  Undeclare(*nodes[1], "w");
  nodes[0]->errors.clear();
  DeclareAll(nodes, {Tensor("w", {4})});
  EXPECT_TRUE(nodes[0]->errors.empty());
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(TensorsTest, UnsummableTensorIsRefusedForItsNode) {
  const auto nodes = AddJob("a", 2);
  Declare(*nodes[0], {Tensor("w", {3, -1}), Tensor("huge", {1ll << 40, 1ll << 40})});
  EXPECT_THAT(nodes[0]->errors.at("w").message(), HasSubstr("[3,-1]"));
  EXPECT_TRUE(nodes[0]->errors.contains("huge"));
  EXPECT_TRUE(nodes[1]->errors.empty());
}

TEST_F(TensorsTest, RepeatedDeclarationIsAnsweredForThatNodeOnly) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  const uint32_t id = nodes[0]->plans.at("w").tensor_id();
  nodes[0]->plans.clear();
  const size_t updates = nodes[1]->updates.size();
  Declare(*nodes[0], {Tensor("w", {1000})});
  EXPECT_EQ(nodes[0]->plans.at("w").tensor_id(), id);
  EXPECT_EQ(nodes[1]->updates.size(), updates);
}

TEST_F(TensorsTest, TensorWithoutAnyServerIsRefusedWithTheReason) {
  const auto nodes = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes, {Tensor("w", {1000})});
  EXPECT_EQ(nodes[0]->errors.at("w").kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_THAT(nodes[0]->errors.at("w").message(),
              AllOf(HasSubstr("no summation server"), HasSubstr("start addend-summation")));
}

TEST_F(TensorsTest, WithoutColocatedServersTheCpuServersSumAll) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes, {Tensor("w", {10000})});
  for (const uint32_t id : nodes[0]->plans.at("w").servers()) EXPECT_EQ(id, server.id);
}

TEST_F(TensorsTest, AssignmentReachesTheSharesWithinOnePartition) {
  AddCpuServer();
  AddCpuServer();
  const auto nodes = AddJob("a", 4);
  DeclareAll(nodes, {Tensor("w", {1024 * 500}), Tensor("u", {1024 * 77}), Tensor("b", {5})});
  const v1::GetStatusResponse status = Status();
  const v1::JobStatus& job = status.jobs(0);
  const double partition = 4096.0 / static_cast<double>(job.tensor_bytes());
  for (const v1::ServerShare& share : job.shares()) {
    EXPECT_LE(share.assigned(), share.share() + partition);
  }
}

TEST_F(TensorsTest, PlanIsPublishedOnlyWhenAllOwnersHaveReserved) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  EXPECT_TRUE(nodes[0]->plans.empty());
  Answer(&server);
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
}

TEST_F(TensorsTest, ReservationLostWithAStreamIsRepeatedByTheNext) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  membership_->WatchBroke(now_, server.watch);
  server.answers = true;
  Watch(&server);
  EXPECT_TRUE(server.updates.back().full());
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

TEST_F(TensorsTest, RefusalIsPlannedElsewhere) {
  FakeServer& small = AddCpuServer();
  small.capacity = 2 * 4096 * 3;  // three partitions, of which the scheduler knows nothing
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  ASSERT_TRUE(nodes[0]->plans.contains("w")) << Reasons();
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
  EXPECT_LE(small.held_bytes(), small.capacity);
  EXPECT_GT(small.held_bytes(), 0u);
  EXPECT_THAT(Reasons(), HasSubstr("server 1 (on cpu0) refused tensor 'w': no memory"));
  // The refused attempts are released everywhere.
  for (const auto& server : servers_) {
    EXPECT_LE(server->jobs.at(nodes[0]->job_id).tensors.size(), 1u);
  }
}

TEST_F(TensorsTest, RefusalOfOneTensorDoesNotHoldUpTheOthers) {
  FakeServer& small = AddCpuServer();
  small.capacity = 2 * 4096;
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("u", {1024}), Tensor("v", {50000}), Tensor("w", {100000})});
  for (const char* name : {"u", "v", "w"}) {
    ASSERT_TRUE(nodes[0]->plans.contains(name)) << name << Reasons();
    ExpectHeld(nodes[0]->plans.at(name), nodes[0]->job_id);
  }
}

TEST_F(TensorsTest, ServerThatRefusesEverythingIsLeftOut) {
  FakeServer& none = AddCpuServer();
  none.capacity = 0;
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  for (const uint32_t id : nodes[0]->plans.at("w").servers()) EXPECT_NE(id, none.id);
}

TEST_F(TensorsTest, RefusalForRoomNamesTheNeedAndTheRoomOfEveryServer) {
  AddCpuServer(16384);
  const auto nodes = AddJob("a", 2, /*colocated=*/false);
  DeclareAll(nodes, {Tensor("fits", {1024}), Tensor("w", {100000})});
  EXPECT_TRUE(nodes[0]->plans.contains("fits")) << Reasons();
  ASSERT_TRUE(nodes[1]->errors.contains("w"));
  EXPECT_EQ(nodes[1]->errors.at("w").kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_EQ(nodes[1]->errors.at("w").exit_code(), TellFailure(FailureKind::kResources).exit_status);
  EXPECT_THAT(nodes[1]->errors.at("w").message(),
              AllOf(HasSubstr("'w'"), HasSubstr("800"), HasSubstr("server 1 (on cpu0)"),
                    HasSubstr("--memory-limit")));
}

TEST_F(TensorsTest, JobStaysWithinItsLimitOfAServerAndAnotherJobGetsTheRest) {
  AddCpuServer(1 << 20, /*bandwidth_bps=*/0,
               /*job_memory_limit=*/16384 + 2 * PartitionTableBytes(2));
  const auto greedy = AddJob("greedy", 2, /*colocated=*/false);
  DeclareAll(greedy, {Tensor("fits", {1024}), Tensor("w", {100000})});
  EXPECT_TRUE(greedy[0]->plans.contains("fits")) << Reasons();
  ASSERT_TRUE(greedy[1]->errors.contains("w"));
  EXPECT_EQ(greedy[1]->errors.at("w").kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_THAT(greedy[1]->errors.at("w").message(),
              AllOf(HasSubstr("'w'"), HasSubstr("has 9.424KB left for this job"),
                    HasSubstr("raise --job-memory-limit")));
  const auto modest = AddJob("modest", 2, /*colocated=*/false);
  DeclareAll(modest, {Tensor("w", {2048})});
  EXPECT_TRUE(modest[0]->plans.contains("w")) << Reasons();
  Undeclare(*greedy[0], "fits");
  Undeclare(*greedy[1], "fits");
  DeclareAll(greedy, {Tensor("instead", {2048})});
  EXPECT_TRUE(greedy[0]->plans.contains("instead")) << Reasons();
}

TEST_F(TensorsTest, NumberOfTensorsOfAJobIsLimited) {
  const auto nodes = AddJob("a", 1);
  std::vector<v1::TensorDescriptor> tensors;
  for (int i = 0; i <= 100'000; ++i) tensors.push_back(Tensor(absl::StrFormat("w%d", i), {0}));
  Declare(*nodes[0], tensors);
  ASSERT_TRUE(nodes[0]->errors.contains("w100000"));
  EXPECT_EQ(nodes[0]->errors.at("w100000").kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_EQ(nodes[0]->errors.size(), 1u);
  Undeclare(*nodes[0], "w0");
  Declare(*nodes[0], {Tensor("another", {0})});
  EXPECT_TRUE(nodes[0]->plans.contains("another"));
}

TEST_F(TensorsTest, MemoryOfUndeclaredTensorsIsUsedAgain) {
  AddCpuServer(16384 + 2 * PartitionTableBytes(1));
  const auto nodes = AddJob("a", 1, /*colocated=*/false);
  for (int i = 0; i < 5; ++i) {
    Declare(*nodes[0], {Tensor("w", {2048})});
    ASSERT_TRUE(nodes[0]->plans.contains("w")) << i;
    Undeclare(*nodes[0], "w");
  }
}

TEST_F(TensorsTest, MemoryUnderReservationIsNotPlannedTwice) {
  const uint64_t each = 8192 + PartitionTableBytes(1);  // of a tensor with a single partition
  FakeServer& server = AddCpuServer(3 * each);
  const auto nodes = AddJob("a", 1, /*colocated=*/false);
  server.answers = false;
  Declare(*nodes[0], {Tensor("u", {1024})});
  const v1::ServerUpdate first = server.updates.back();
  Declare(*nodes[0], {Tensor("v", {1024})});
  // The server has not seen "v" yet, so it counts that memory as free.
  v1::AckReservationRequest answer = server.Take(first);
  EXPECT_EQ(answer.free_bytes(), 2 * each);
  *answer.mutable_member() = server.member();
  auto [status, decision] = membership_->AckReservation(now_, answer);
  ASSERT_TRUE(status.ok());
  Apply(std::move(decision));
  Declare(*nodes[0], {Tensor("w", {2048})});
  EXPECT_TRUE(nodes[0]->errors.contains("w"));
}

TEST_F(TensorsTest, TensorUndeclaredByAllIsReleasedAndRemoved) {
  AddCpuServer();
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {100000})});
  Undeclare(*nodes[0], "w");
  EXPECT_TRUE(nodes[0]->plans.contains("w"));
  Undeclare(*nodes[1], "w");
  EXPECT_TRUE(nodes[0]->plans.empty());
  for (const auto& server : servers_) EXPECT_EQ(server->held_bytes(), 0u);
}

TEST_F(TensorsTest, TensorIsRedeclaredWithAnotherShape) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("w", {1000})});
  // Node 0 is a step ahead: its new declaration waits for node 1's undeclaration.
  Undeclare(*nodes[0], "w");
  Declare(*nodes[0], {Tensor("w", {50, 40})});
  EXPECT_EQ(nodes[0]->plans.at("w").tensor().shape_size(), 1);
  Undeclare(*nodes[1], "w");
  EXPECT_TRUE(nodes[0]->plans.empty());
  Declare(*nodes[1], {Tensor("w", {50, 40})});
  EXPECT_TRUE(nodes[0]->errors.empty());
  EXPECT_EQ(nodes[0]->plans.at("w").tensor().shape_size(), 2);
  EXPECT_EQ(nodes[1]->plans.at("w").tensor().shape_size(), 2);
}

TEST_F(TensorsTest, NodeMayBeTwoDeclarationsAhead) {
  const auto nodes = AddJob("a", 2);
  for (const int64_t size : {1, 2, 3}) {
    Declare(*nodes[0], {Tensor("w", {size})});
    if (size < 3) Undeclare(*nodes[0], "w");
  }
  for (const int64_t size : {1, 2, 3}) {
    Declare(*nodes[1], {Tensor("w", {size})});
    ASSERT_TRUE(nodes[1]->plans.contains("w"));
    EXPECT_EQ(nodes[1]->plans.at("w").tensor().shape(0), size);
    if (size < 3) Undeclare(*nodes[1], "w");
  }
  EXPECT_TRUE(nodes[0]->errors.empty());
}

TEST_F(TensorsTest, MismatchOfAWaitingDeclarationIsToldWhenItsTurnComes) {
  const auto nodes = AddJob("a", 3);
  DeclareAll(nodes, {Tensor("w", {1})});
  Undeclare(*nodes[0], "w");
  Declare(*nodes[0], {Tensor("w", {2})});
  Undeclare(*nodes[1], "w");
  Declare(*nodes[1], {Tensor("w", {3})});
  EXPECT_TRUE(nodes[2]->errors.empty());
  Undeclare(*nodes[2], "w");
  EXPECT_TRUE(nodes[2]->errors.contains("w"));
}

TEST_F(TensorsTest, TensorUndeclaredWhileReservingIsReleased) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  const size_t reserving = server.updates.size() - 1;
  Undeclare(*nodes[0], "w");
  Undeclare(*nodes[1], "w");
  // The server works off both updates late.
  for (size_t i = reserving; i < server.updates.size(); ++i) {
    v1::AckReservationRequest answer = server.Take(server.updates[i]);
    *answer.mutable_member() = server.member();
    auto [status, decision] = membership_->AckReservation(now_, answer);
    ASSERT_TRUE(status.ok());
    Apply(std::move(decision));
  }
  EXPECT_EQ(server.held_bytes(), 0u);
  EXPECT_TRUE(nodes[0]->plans.empty());
}

TEST_F(TensorsTest, ServerLostWhileReservingIsReplaced) {
  FakeServer& server = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  server.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  Kill(&server);
  Pass(absl::Seconds(6));
  EXPECT_EQ(nodes[0]->state, v1::READY);
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

TEST_F(TensorsTest, ServersLostTogetherWhileReservingLeaveNoReservation) {
  FakeServer& first = AddCpuServer();
  FakeServer& second = AddCpuServer();
  const auto nodes = AddJob("a", 2);
  first.answers = second.answers = false;
  DeclareAll(nodes, {Tensor("w", {100000})});
  Kill(&first);
  Kill(&second);
  Pass(absl::Seconds(6));
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  ExpectHeld(nodes[0]->plans.at("w"), nodes[0]->job_id);
}

TEST_F(TensorsTest, ServerThatJoinsLaterSumsItsShareOfEarlierAndLaterTensors) {
  const auto nodes = AddJob("a", 2);
  DeclareAll(nodes, {Tensor("u", {100000})});
  FakeServer& late = AddCpuServer();
  DeclareAll(nodes, {Tensor("w", {100000})});
  for (const char* name : {"u", "w"}) {
    const auto& servers = nodes[0]->plans.at(name).servers();
    EXPECT_GT(std::count(servers.begin(), servers.end(), late.id), 10) << name;
    ExpectHeld(nodes[0]->plans.at(name), nodes[0]->job_id);
  }
}

TEST_F(TensorsTest, CpuServerOfTwoJobsCountsHalfForEach) {
  AddCpuServer(0, 1e10);
  AddJob("a", 2);
  for (auto& node : nodes_) {
    node->info.set_bandwidth_bps(1e10);
    ASSERT_TRUE(Register(node.get()).ok());
  }
  const double alone = Status().jobs(0).shares(2).share();
  AddNode("b", 0, 1);
  EXPECT_LT(Status().jobs(0).shares(2).share(), alone);
}

TEST_F(TensorsTest, PartitionsOfAllTensorsOfAJobAreCounted) {
  partition_bytes_ = 512;
  const auto nodes = AddJob("a", 1);
  const auto half = [](const std::string& name) {
    return Tensor(name, {static_cast<int64_t>(kMaxPartitions / 2) * 128});
  };
  Declare(*nodes[0], {half("u"), half("v"), half("w"), Tensor("one", {1})});
  EXPECT_EQ(nodes[0]->plans.size(), 2u);
  const v1::TensorError& error = nodes[0]->errors.at("w");
  EXPECT_EQ(error.kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_EQ(
      error.message(),
      "tensor 'w' would have 524288 partitions, but the other tensors of job 'a' have 1048576 "
      "already, and a job has at most 1048576: raise --partition-bytes");
  EXPECT_TRUE(nodes[0]->errors.contains("one"));
  Undeclare(*nodes[0], "u");
  Declare(*nodes[0], {Tensor("two", {1})});
  EXPECT_TRUE(nodes[0]->plans.contains("two"));
  Idle(*nodes[0]);
  Declare(*nodes[0], {half("u"), half("v")});
  EXPECT_EQ(nodes[0]->plans.size(), 2u) << "a generation begins with none";
}

TEST_F(TensorsTest, NamesOfAllTensorsOfAJobAreCounted) {
  const auto nodes = AddJob("a", 1);
  const auto long_name = [](uint64_t i) {
    std::string name = absl::StrFormat("%05d", i);
    return name + std::string(kMaxNameBytes - name.size(), 'n');
  };
  std::vector<v1::TensorDescriptor> tensors;
  for (uint64_t i = 0; i < kMaxJobsTensorNameBytes / kMaxNameBytes; ++i) {
    tensors.push_back(Tensor(long_name(i), {1}));
  }
  Declare(*nodes[0], tensors);
  EXPECT_EQ(nodes[0]->plans.size(), tensors.size());
  Declare(*nodes[0], {Tensor("one more", {1})});
  const v1::TensorError& error = nodes[0]->errors.at("one more");
  EXPECT_EQ(error.kind(), TraitsOf(FailureKind::kResources).name);
  EXPECT_THAT(error.message(), HasSubstr("have 33554432 bytes together, and may have at most"));
  Undeclare(*nodes[0], long_name(0));
  Declare(*nodes[0], {Tensor("another", {1})});
  EXPECT_TRUE(nodes[0]->plans.contains("another"));
  Restart();
  Declare(*nodes[0], {Tensor(long_name(0), {1})});
  EXPECT_TRUE(nodes[0]->errors.contains(long_name(0))) << "they are counted after a restart, too";
}

TEST_F(TensorsTest, PartitionsAreCountedAgainAfterARestart) {
  partition_bytes_ = 512;
  const auto nodes = AddJob("a", 1);
  Declare(*nodes[0], {Tensor("w", {static_cast<int64_t>(kMaxPartitions) * 128})});
  ASSERT_TRUE(nodes[0]->plans.contains("w"));
  servers_[0]->jobs.clear();  // the test's server takes a quadratic time to compare
  Restart();
  Declare(*nodes[0], {Tensor("one", {1})});
  EXPECT_TRUE(nodes[0]->errors.contains("one"));
}

}  // namespace
}  // namespace addend
