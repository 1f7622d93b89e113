// The bounded send queue of a node's link.
#include "lib/summation/node_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

using ::testing::ElementsAre;

class NodePortTest : public JobFixture {
 protected:
  NodePortTest() {
    limits_.window_bytes = 1;  // a single frame at a time
    node_ = MakeNode();
    job_.server = &server_;
    job_.spec = spec_;
    node_->port.Join(&job_, NodeId(1));
    node_->port.Attach(/*encodes=*/true);
    node_->port.Push(Header(FrameType::kPing, 0));  // occupies the link
  }
  JobState job_;
  std::unique_ptr<Node> node_;
};

TEST(JobNodesTest, EachPortIsVisitedOnceFromANodeOn) {
  // The ports are not used, only told apart.
  const auto port = [](uintptr_t number) { return reinterpret_cast<NodePort*>(number * 16); };
  const NodeId relay = RelayId(ServerId(2));
  JobNodes nodes;
  for (const uint32_t node : {1, 4, 6}) nodes.Set(NodeId(node), port(node));
  nodes.Set(relay, port(9));
  const auto visited = [&](uint32_t from) {
    std::vector<std::pair<NodeId, NodePort*>> all;
    nodes.ForEachFrom(from, [&](NodeId id, NodePort* node) { all.emplace_back(id, node); });
    return all;
  };
  const std::pair<NodeId, NodePort*> first{NodeId(1), port(1)}, four{NodeId(4), port(4)},
      six{NodeId(6), port(6)}, last{relay, port(9)};
  EXPECT_THAT(visited(0), ElementsAre(first, four, six, last));
  EXPECT_THAT(visited(3), ElementsAre(four, six, last, first));
  EXPECT_THAT(visited(7), ElementsAre(last, first, four, six)) << "relays have larger numbers";
}

TEST(JobStateTest, EachServerServesAnotherNodeFirst) {
  ServerIdentity server;
  JobState job;
  job.server = &server;
  job.spec.num_nodes = 4;
  std::vector<uint32_t> served;
  for (const uint32_t id : {1, 2, 3, 4}) {
    server.id = id;
    served.push_back(job.FirstServed());
  }
  EXPECT_THAT(served, ElementsAre(1, 2, 3, 0));
}

TEST_F(NodePortTest, FrameThatWaitsIsNotQueuedAgain) {
  const FrameHeader moved = Header(FrameType::kMoved, 0, 0, 3);
  node_->port.PushOnce(moved);
  node_->port.PushOnce(moved);
  EXPECT_EQ(node_->port.queued(), 1u);
  EXPECT_TRUE(node_->port.StillWaits(moved));
  node_->link.Finish();
  EXPECT_EQ(node_->link.Count(FrameType::kMoved), 1u);
  EXPECT_FALSE(node_->port.StillWaits(moved));
  EXPECT_FALSE(node_->link.closed.has_value());
}

TEST_F(NodePortTest, FrameOfAnotherRoundIsAnotherFrame) {
  node_->port.PushOnce(Header(FrameType::kResult, 0, 0, 3));
  EXPECT_FALSE(node_->port.StillWaits(Header(FrameType::kResult, 0, 0, 4)));
  node_->port.PushOnce(Header(FrameType::kResult, 0, 0, 4));
  EXPECT_EQ(node_->port.queued(), 2u);
}

TEST_F(NodePortTest, NodeThatRepeatsARequestWithoutReadingIsClosed) {
  const FrameHeader moved = Header(FrameType::kMoved, 0, 0, 3);
  for (int i = 0; i < 9; ++i) node_->port.PushOnce(moved);
  EXPECT_FALSE(node_->link.closed.has_value());
  node_->port.PushOnce(moved);
  ASSERT_TRUE(node_->link.closed.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*node_->link.closed)) << *node_->link.closed;
}

TEST_F(NodePortTest, NodeWithManyFramesOfAKindWaitingIsClosed) {
  for (uint64_t round = 1; round <= 4; ++round) {
    node_->port.PushOnce(Header(FrameType::kResult, 0, 0, round));
  }
  EXPECT_FALSE(node_->link.closed.has_value());
  node_->port.PushOnce(Header(FrameType::kResult, 0, 0, 5));
  EXPECT_TRUE(node_->link.closed.has_value());
}

TEST_F(NodePortTest, QueueMayBeLongerForAJobWithMorePartitions) {
  for (int i = 0; i < 4100; ++i) node_->port.Push(Header(FrameType::kPing, 0));
  EXPECT_TRUE(node_->link.closed.has_value());
  node_->link.closed.reset();
  job_.partitions = 100;
  node_->port.Push(Header(FrameType::kPing, 0));
  EXPECT_FALSE(node_->link.closed.has_value());
}

TEST_F(NodePortTest, DonesOfQueuedFramesRunWhenTheLinkIsClosed) {
  absl::Status done;
  node_->port.PushOnce(Header(FrameType::kMoved, 0), {}, [&](absl::Status why) { done = why; });
  node_->port.Detach(absl::UnavailableError("gone"));
  EXPECT_TRUE(absl::IsUnavailable(done));
  EXPECT_EQ(node_->port.queued(), 0u);
}

TEST_F(NodePortTest, LeavingEndsTheMembershipAndClosesTheLink) {
  EXPECT_TRUE(node_->port.is_member());
  node_->port.Leave(absl::AbortedError("a new generation"));
  EXPECT_FALSE(node_->port.is_member());
  EXPECT_TRUE(absl::IsAborted(*node_->link.closed));
}

}  // namespace
}  // namespace addend
