#include "tools/addendctl/why_command.h"

#include <gmock/gmock.h>

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Three nodes with two ranks each, ready.
RollCall Job() {
  RollCall call;
  call.job.set_name("lm");
  call.job.set_state(v1::READY);
  call.job.mutable_settings()->set_num_nodes(3);
  call.job.mutable_settings()->set_local_size(2);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    v1::NodeStatus* node = call.job.add_nodes();
    node->set_node_rank(rank);
    node->set_hostname("gpu" + std::to_string(rank));
    node->set_last_seen_s(0.5);
    node->set_activity("2 of 2 trainers connected, 7 rounds");
    call.agents[rank];
  }
  return call;
}

v1::OpenTensor* Open(RollCall* call, uint32_t node, double open_s, bool planned = true) {
  v1::OpenTensor* open = call->agents[node].add_open();
  open->set_name("w");
  open->set_round(8);
  open->set_open_s(open_s);
  open->set_planned(planned);
  return open;
}

TEST(WhyTest, WithoutAnOpenRoundNobodyIsAwaited) {
  const Waiting waiting = Explain(Job());
  EXPECT_EQ(waiting.sentence, "job 'lm' waits for nobody: no round is open");
}

TEST(WhyTest, AFormingJobHasTheSchedulersReason) {
  RollCall call = Job();
  call.job.set_state(v1::FORMING);
  call.job.set_reason("waiting for node 2 of 3");
  EXPECT_EQ(Explain(call).sentence, "job 'lm' is forming: waiting for node 2 of 3");
}

TEST(WhyTest, NamesTheNodeThatTheServersMiss) {
  RollCall call = Job();
  Open(&call, 0, 14);
  Open(&call, 1, 12);
  v1::OpenRound round;
  round.set_name("w");
  round.set_round(8);
  round.add_missing(2);
  call.rounds.push_back(round);
  const Waiting waiting = Explain(call);
  EXPECT_THAT(waiting.nodes, ElementsAre(2));
  EXPECT_THAT(waiting.ranks, IsEmpty());
  EXPECT_EQ(waiting.open_s, 14);
  EXPECT_EQ(waiting.sentence,
            "job 'lm' waits for node 2 (on gpu2, last seen 0.5 s ago: 2 of 2 trainers connected, 7 "
            "rounds): round 8 of tensor 'w', open for 14.0 s");
}

TEST(WhyTest, NamesTheRankThatItsAgentMisses) {
  RollCall call = Job();
  Open(&call, 0, 14);
  Open(&call, 1, 13)->add_missing(1);
  v1::OpenRound round;
  round.set_name("w");
  round.set_round(8);
  round.add_missing(1);
  call.rounds.push_back(round);
  const Waiting waiting = Explain(call);
  EXPECT_THAT(waiting.nodes, IsEmpty());
  EXPECT_THAT(waiting.ranks, ElementsAre(3));
  EXPECT_THAT(waiting.sentence, HasSubstr("waits for rank 3 (local rank 1 of node 1): round 8"));
}

TEST(WhyTest, AnUnplannedTensorWaitsForTheNodesThatHaveNotDeclaredIt) {
  RollCall call = Job();
  Open(&call, 0, 3, /*planned=*/false);
  call.agents.erase(2);  // does not answer
  const Waiting waiting = Explain(call);
  EXPECT_THAT(waiting.nodes, ElementsAre(1));
}

}  // namespace
}  // namespace addend
