// The bounded send queue of a node's link.
#include "lib/summation/node_port.h"

#include <gtest/gtest.h>

#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

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
