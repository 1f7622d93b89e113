#include "services/scheduler/lifecycle.h"

#include <gmock/gmock.h>

#include "lib/base/failure.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class LifecycleTest : public JobScopeTest {
 protected:
  LifecycleTest() {
    AddNodes(2);
    job_.current.state = v1::FORMING;
  }
  void Update() { Lifecycle(scope()).UpdateForming(); }
  Node& node(uint32_t rank) { return job_.nodes.at(NodeId(rank)); }
};

TEST_F(LifecycleTest, JobIsReadyWhenNothingIsMissing) {
  EXPECT_EQ(WaitsFor(job_, fleet_), "");
  Update();
  EXPECT_EQ(job_.current.state, v1::READY);
  EXPECT_NE(Broadcast(), nullptr);
}

TEST_F(LifecycleTest, FormingJobNamesTheNodesThatHoldItUp) {
  node(1).trainers = 0;
  EXPECT_THAT(WaitsFor(job_, fleet_), HasSubstr("node 1 of 2 (node ranks 0..1): agent connected"));
  node(0).info.set_colocated_server_id(5);
  EXPECT_THAT(WaitsFor(job_, fleet_), HasSubstr("node 0 of 2 (node ranks 0..1): the colocated"));
  node(1).lease.watch = 0;
  EXPECT_THAT(WaitsFor(job_, fleet_), HasSubstr("node 1 of 2 (node ranks 0..1): registered, but"));
  job_.settings.set_num_nodes(4);
  EXPECT_THAT(WaitsFor(job_, fleet_),
              HasSubstr("nodes 2 and 3 of 4 (node ranks 0..3): not registered"));
  job_.settings.set_num_nodes(1000);
  EXPECT_THAT(WaitsFor(job_, fleet_),
              HasSubstr("nodes 2, 3, 4, 5, 6, 7, 8, 9 and 990 others of 1000"));
}

TEST_F(LifecycleTest, NodesAreNotToldAnewTooOften) {
  node(0).trainers = node(1).trainers = 0;
  Update();
  EXPECT_NE(Broadcast(), nullptr);
  NextEvent(absl::Milliseconds(199));
  node(0).trainers = 1;
  Update();
  EXPECT_EQ(Broadcast(), nullptr);
  EXPECT_TRUE(job_.forming_changed);
  NextEvent(absl::Milliseconds(1));
  node(0).trainers = 0;
  Update();
  EXPECT_NE(Broadcast(), nullptr);
  EXPECT_FALSE(job_.forming_changed);
}

// More nodes than are looked at whenever one has taken a step.
class LargeJobTest : public LifecycleTest {
 protected:
  static constexpr uint32_t kNodes = 500;
  LargeJobTest() {
    AddNodes(kNodes);
    job_.current.state = v1::FORMING;
    for (auto& [rank, node] : job_.nodes) node.trainers = 0;
    Update();
    Lifecycle(scope()).TellFormingIfDue();
    EXPECT_NE(Broadcast(), nullptr);
    NextEvent(absl::Milliseconds(1));
  }
};

TEST_F(LargeJobTest, BeginsWithTheLastNodeWhateverTheOrder) {
  for (uint32_t i = 0; i < kNodes; ++i) {
    EXPECT_EQ(job_.current.state, v1::FORMING);
    node(i * 7 % kNodes).trainers = 1;
    Update();
  }
  EXPECT_EQ(job_.current.state, v1::READY);
}

TEST_F(LargeJobTest, NodeThatFallsBackHoldsTheJobUpAgain) {
  for (uint32_t rank = 0; rank + 1 < kNodes; ++rank) node(rank).trainers = 1;
  Update();
  node(3).lease.watch = 0;
  node(kNodes - 1).trainers = 1;
  Update();
  EXPECT_EQ(job_.current.state, v1::FORMING);
  node(3).lease.watch = 203;
  Update();
  EXPECT_EQ(job_.current.state, v1::READY);
}

TEST_F(LargeJobTest, NodesAreToldAfterAMillisecondForEach) {
  node(0).trainers = 1;
  Update();
  EXPECT_TRUE(job_.forming_changed);
  NextEvent(absl::Milliseconds(498));
  Lifecycle(scope()).TellFormingIfDue();
  EXPECT_EQ(Broadcast(), nullptr);
  NextEvent(absl::Milliseconds(1));
  Lifecycle(scope()).TellFormingIfDue();
  ASSERT_NE(Broadcast(), nullptr);
  EXPECT_THAT(job_.current.reason, HasSubstr("nodes 1, 2, 3, 4, 5, 6, 7, 8 and 491 others of 500"));
  NextEvent(absl::Seconds(1));
  Update();
  Lifecycle(scope()).TellFormingIfDue();
  EXPECT_EQ(Broadcast(), nullptr) << "nothing has changed";
}

TEST_F(LifecycleTest, OnlyAReadyGenerationFails) {
  Lifecycle(scope()).Fail("first", FailureKind::kPeerLost);
  EXPECT_EQ(job_.current.state, v1::FORMING);
  job_.current.state = v1::READY;
  Lifecycle(scope()).Fail("second", FailureKind::kPeerLost);
  Lifecycle(scope()).Fail("third", FailureKind::kInternal);
  EXPECT_EQ(job_.current.state, v1::FAILED);
  EXPECT_EQ(job_.current.reason, "second") << "the first failure counts";
}

TEST_F(LifecycleTest, NextGenerationBeginsWhenAllNodesAreIdle) {
  Server& server = AddServer(1 << 20);
  job_.current.state = v1::READY;
  Published("w", 5000);
  ASSERT_LT(server.free_bytes, 1u << 20);
  node(0).idle = true;
  Lifecycle(scope()).StartNextGenerationIfIdle();
  EXPECT_EQ(job_.current.number, Generation(1));
  node(1).idle = true;
  Lifecycle(scope()).StartNextGenerationIfIdle();
  EXPECT_EQ(job_.current.number, Generation(2));
  EXPECT_EQ(job_.current.state, v1::FORMING);
  EXPECT_TRUE(job_.current.tensors.empty());
  EXPECT_EQ(server.free_bytes, 1u << 20);
  EXPECT_EQ(changes_->updates().full.size(), 2u) << "every node gets the whole state";
}

}  // namespace
}  // namespace addend
