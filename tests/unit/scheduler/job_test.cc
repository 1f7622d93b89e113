#include "services/scheduler/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/scheduler/node_list.h"

namespace addend {
namespace {

class JobTest : public testing::Test {
 protected:
  JobTest() {
    job_.settings.set_num_nodes(3);
    job_.settings.set_local_size(2);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Node& node = job_.nodes[NodeId(rank)];
      node.rank = NodeId(rank);
      node.info.set_hostname("gpu" + std::to_string(rank));
      node.lease.has_watched = true;
    }
  }
  Node& node(uint32_t rank) { return job_.nodes.at(NodeId(rank)); }

  const absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  Job job_;
};

TEST_F(JobTest, NextGenerationIsANewValue) {
  JobGeneration& current = job_.current;
  current.state = v1::FAILED;
  current.reason = "why";
  current.gone[NodeId(1)] = "why";
  current.lost[NodeId(1)] = 7;
  current.change.version = PlanVersion(4);
  current.rebalance = PlanReason::kLoss;
  current.nonfinite.text = "NaN";
  current.tensors.Declare("a", NodeId(0), v1::TensorDescriptor(), Participants(),
                          &job_.next_agreement);
  node(0).idle = true;
  node(0).trainers = 2;
  node(0).accusers[NodeId(2)] = "why";
  job_.plan_version = PlanVersion(9);
  job_.speeds[ServerId(1)] = 0.5;

  job_.Begin(Generation(5), now_);
  EXPECT_EQ(current.number, Generation(5));
  EXPECT_EQ(current.state, v1::FORMING);
  EXPECT_EQ(current.forming_since, now_);
  EXPECT_EQ(current.reason, "");
  EXPECT_TRUE(current.gone.empty() && current.lost.empty() && current.tensors.empty());
  EXPECT_FALSE(current.change.under_way() || current.rebalance.has_value());
  EXPECT_EQ(current.nonfinite.text, "");
  EXPECT_FALSE(node(0).idle);
  EXPECT_EQ(node(0).trainers, 0u);
  EXPECT_TRUE(node(0).accusers.empty());
  // The job's numbers and measurements go on.
  EXPECT_EQ(job_.plan_version, PlanVersion(9));
  EXPECT_EQ(job_.next_agreement, 2u);
  EXPECT_EQ(job_.SpeedOf(ServerId(1)), 0.5);
}

TEST_F(JobTest, IdleAndGoneNodesTakeNoPart) {
  EXPECT_TRUE(job_.TakesPart(node(0)));
  node(0).idle = true;
  job_.current.gone[NodeId(1)] = "lost";
  EXPECT_FALSE(job_.TakesPart(node(0)));
  EXPECT_FALSE(job_.TakesPart(node(1)));
  EXPECT_TRUE(job_.AllTakingPartIn({NodeId(2)}));
  EXPECT_FALSE(job_.AllTakingPartIn({}));
}

TEST_F(JobTest, GoneNodesAreNotWaitedForInASet) {
  DeclaredTensor tensor;
  job_.CountNodes(&tensor);
  NodeSet declared;
  declared.Insert(NodeId(0));
  declared.Insert(NodeId(2));
  EXPECT_FALSE(job_.AllIn(declared, tensor));
  job_.current.gone[NodeId(1)] = "lost";
  EXPECT_TRUE(job_.AllIn(declared, tensor));
  declared.Insert(NodeId(1));
  EXPECT_TRUE(job_.AllIn(declared, tensor)) << "a gone node in the set counts once";
}

TEST_F(JobTest, OnlyNodesOfTheParticipantsAreWaitedFor) {
  const uint32_t local_size = job_.settings.local_size();
  v1::TensorDescriptor descriptor;
  const std::vector<uint32_t> ranks{0, 2 * local_size};
  descriptor.set_participants(Participants::Of(ranks, 3 * local_size)->bits());
  DeclaredTensor tensor;
  tensor.participants = *job_.ParticipantsOf(descriptor);
  job_.CountNodes(&tensor);
  NodeSet declared;
  declared.Insert(NodeId(2));
  EXPECT_FALSE(job_.AllIn(declared, tensor));
  job_.current.gone[NodeId(1)] = "lost";
  EXPECT_FALSE(job_.AllIn(declared, tensor)) << "the lost node has no participant";
  declared.Insert(NodeId(0));
  EXPECT_TRUE(job_.AllIn(declared, tensor));
  descriptor.set_participants(std::string(7, '\0') + "\x80");
  EXPECT_THAT(std::string(job_.ParticipantsOf(descriptor).status().message()),
              testing::HasSubstr("names ranks that job"));
}

TEST_F(JobTest, FirstPlanVersionLeavesRoomForVersionsThatUnheardNodesKnow) {
  job_.plan_version = PlanVersion(10);
  node(1).lease.has_watched = false;
  job_.NextPlanVersion();
  EXPECT_EQ(job_.plan_version, PlanVersion(11 + kVersionsLeft));
  EXPECT_EQ(job_.first_given_version, 11 + kVersionsLeft);
  job_.NextPlanVersion();
  EXPECT_EQ(job_.plan_version, PlanVersion(12 + kVersionsLeft)) << "the room is left once";
}

TEST_F(JobTest, FirstTensorOfARestoredJobLeavesRoomForTensorsThatTheStoreHasLost) {
  job_.next_tensor = job_.stored_next_tensor = 10;
  job_.first_given_tensor = 0;
  EXPECT_TRUE(job_.IsForgotten(TensorId(10))) << "nobody has given it";
  EXPECT_EQ(job_.NextTensor(), TensorId(10 + kTensorsLeft));
  EXPECT_EQ(job_.NextTensor(), TensorId(11 + kTensorsLeft)) << "the room is left once";
  EXPECT_FALSE(job_.IsForgotten(TensorId(9)));
  EXPECT_TRUE(job_.IsForgotten(TensorId(10))) << "a former scheduler has given it";
  EXPECT_TRUE(job_.IsForgotten(TensorId(9 + kTensorsLeft)));
  EXPECT_FALSE(job_.IsForgotten(TensorId(10 + kTensorsLeft)));
  EXPECT_FALSE(job_.IsForgotten(TensorId(11 + kTensorsLeft)));
  EXPECT_TRUE(job_.IsForgotten(TensorId(12 + kTensorsLeft)));
}

TEST_F(JobTest, TensorsOfANewJobCountUp) {
  Job job;
  EXPECT_EQ(job.NextTensor(), TensorId(1));
  EXPECT_EQ(job.NextTensor(), TensorId(2));
  EXPECT_FALSE(job.IsForgotten(TensorId(2)));
  EXPECT_TRUE(job.IsForgotten(TensorId(3))) << "nobody has given it";
}

TEST_F(JobTest, PlanVersionCountsUpWhenAllNodesWereHeard) {
  job_.NextPlanVersion();
  EXPECT_EQ(job_.plan_version, PlanVersion(1));
}

TEST_F(JobTest, NamesOfNodesHaveTheirRanks) {
  EXPECT_EQ(NameOf(node(1)), "node 1 (on gpu1)");
  EXPECT_EQ(NameOf(job_, node(1)), "node 1 (on gpu1, ranks 2..3)");
  job_.settings.set_local_size(1);
  EXPECT_EQ(NameOf(job_, node(1)), "node 1 (on gpu1, rank 1)");
}

TEST(NodeSetTest, NodesAreBitsOfBytes) {
  NodeSet set;
  for (const uint32_t node : {0u, 7u, 8u, 21u}) {
    EXPECT_FALSE(set.Contains(NodeId(node)));
    EXPECT_TRUE(set.Insert(NodeId(node)));
    EXPECT_FALSE(set.Insert(NodeId(node))) << "it is there";
  }
  EXPECT_EQ(set.bits(), std::string("\x81\x01\x20"));
  EXPECT_EQ(set.size(), 4u);
  const NodeSet restored(set.bits());
  EXPECT_EQ(restored.size(), 4u);
  for (uint32_t node = 0; node < 32; ++node) {
    EXPECT_EQ(restored.Contains(NodeId(node)), node == 0 || node == 7 || node == 8 || node == 21);
  }
}

TEST(JobsTest, JobsAreFoundByNumberAndByName) {
  Jobs jobs;
  Job& a = jobs.Create("a");
  Job& b = jobs.Create("b");
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(jobs.Find("a"), &a);
  EXPECT_EQ(jobs.Find(b.id), &b);
  jobs.Remove(a.id);
  EXPECT_EQ(jobs.Find("a"), nullptr);
  EXPECT_EQ(jobs.Find(JobId(1)), nullptr);
  EXPECT_EQ(jobs.size(), 1u);
}

TEST(JobsTest, NumbersOfAFormerSchedulerAreSkippedIfTheyArePlausible) {
  Jobs jobs;
  jobs.SkipFormer(20);
  EXPECT_EQ(jobs.Create("a").id, JobId(21));
  jobs.SkipFormer(3);
  EXPECT_EQ(jobs.Create("b").id, JobId(22));
  jobs.SkipFormer(uint64_t{1} << 60);
  EXPECT_EQ(jobs.Create("c").id, JobId(23));
}

TEST(NodeListTest, LongListsNameTheFirstNodesAndCountTheOthers) {
  NodeList list;
  list.Add(2);
  EXPECT_EQ(list.Text(), "node 2");
  list.Add(3);
  list.Add(5);
  EXPECT_EQ(list.Text(), "nodes 2, 3 and 5");
  for (uint32_t rank = 6; rank < 100; ++rank) list.Add(rank);
  EXPECT_EQ(list.Text(), "nodes 2, 3, 5, 6, 7, 8, 9, 10 and 89 others");
}

}  // namespace
}  // namespace addend
