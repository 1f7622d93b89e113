#include "lib/member/node_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/rpc/request_bounds.h"

namespace addend::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

v1::NodeUpdate Update(uint32_t generation, v1::JobState state = v1::READY) {
  v1::NodeUpdate update;
  update.set_generation(generation);
  update.set_state(state);
  return update;
}

void AddPlan(v1::NodeUpdate* update, uint32_t id, const std::string& name) {
  v1::TensorPlan* const plan = update->add_tensors();
  plan->set_tensor_id(id);
  plan->mutable_tensor()->set_name(name);
}

v1::Recollection ToldBy(const NodeMemory& memory) {
  v1::RegisterNodeRequest request;
  memory.AddTo(&request);
  return request.recollection();
}

Report Undeclared(uint32_t generation, const std::string& name) {
  return report::Undeclare(Generation(generation), name);
}

TEST(NodeMemoryTest, ANodeWithoutUpdatesKnowsNothing) {
  v1::RegisterNodeRequest request;
  NodeMemory().AddTo(&request);
  EXPECT_FALSE(request.has_recollection());
}

TEST(NodeMemoryTest, ItKeepsTheLatestPlanOfEachTensorAndTheHighestVersion) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(2);
  update.set_plan_version(7);
  update.add_lost_nodes(1);
  AddPlan(&update, 1, "a");
  AddPlan(&update, 2, "b");
  memory.Note(update);
  v1::NodeUpdate moved = Update(2);
  moved.set_plan_version(6);  // a scheduler that has lost its last writes
  moved.add_lost_nodes(1);
  AddPlan(&moved, 2, "b");
  moved.mutable_tensors(0)->add_servers(9);
  memory.Note(moved);
  const v1::Recollection told = ToldBy(memory);
  EXPECT_EQ(told.generation(), 2u);
  EXPECT_EQ(told.plan_version(), 7u);
  EXPECT_THAT(told.lost_nodes(), ElementsAre(1));
  ASSERT_EQ(told.tensors_size(), 2);
  EXPECT_THAT(told.tensors(0).servers(), IsEmpty());
  EXPECT_THAT(told.tensors(1).servers(), ElementsAre(9));
}

TEST(NodeMemoryTest, AGenerationForgetsTheFormer) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(1);
  AddPlan(&update, 1, "a");
  memory.Note(update);
  memory.Note(report::Idle(Generation(1)));
  EXPECT_TRUE(ToldBy(memory).idle());
  memory.Note(Update(2, v1::FORMING));
  memory.Note(update);  // too late
  memory.Note(report::Idle(Generation(1)));
  const v1::Recollection told = ToldBy(memory);
  EXPECT_EQ(told.generation(), 2u);
  EXPECT_THAT(told.tensors(), IsEmpty());
  EXPECT_FALSE(told.idle());
}

TEST(NodeMemoryTest, AnUndeclaredTensorIsTheOldestOfItsName) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(1);
  AddPlan(&update, 1, "a");
  memory.Note(update);
  memory.Note(Undeclared(1, "a"));
  memory.Note(Undeclared(1, "never planned"));
  v1::NodeUpdate next = Update(1);
  AddPlan(&next, 2, "a");
  memory.Note(next);
  EXPECT_THAT(ToldBy(memory).undeclared(), ElementsAre(1));
  v1::NodeUpdate removed = Update(1);
  removed.add_removed(1);
  memory.Note(removed);
  EXPECT_THAT(ToldBy(memory).undeclared(), IsEmpty());
  EXPECT_THAT(ToldBy(memory).removed(), ElementsAre(1));
}

// A restarted scheduler leaves tensors out whose owners recover them.
TEST(NodeMemoryTest, AFullUpdateRemovesOnlyTensorsThatTheNodeHasUndeclared) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(1);
  AddPlan(&update, 1, "a");
  AddPlan(&update, 2, "b");
  memory.Note(update);
  memory.Note(Undeclared(1, "b"));
  v1::NodeUpdate full = Update(1);
  full.set_full(true);
  memory.Note(full);
  const v1::Recollection told = ToldBy(memory);
  ASSERT_EQ(told.tensors_size(), 1);
  EXPECT_EQ(told.tensors(0).tensor_id(), 1u);
  EXPECT_THAT(told.removed(), ElementsAre(2));
}

// The scheduler was still waiting for the tensor's new owners: other nodes need it.
TEST(NodeMemoryTest, APlanThatComesAgainIsOfATensorThatTheNodeHasUndeclared) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(1);
  AddPlan(&update, 1, "a");
  memory.Note(update);
  memory.Note(Undeclared(1, "a"));
  v1::NodeUpdate full = Update(1);
  full.set_full(true);
  memory.Note(full);
  memory.Note(update);
  EXPECT_THAT(ToldBy(memory).undeclared(), ElementsAre(1));
  EXPECT_THAT(ToldBy(memory).removed(), IsEmpty());
  v1::NodeUpdate next = Update(1);
  AddPlan(&next, 2, "a");
  memory.Note(next);
  memory.Note(Undeclared(1, "a"));
  EXPECT_THAT(ToldBy(memory).undeclared(), ElementsAre(1, 2));
}

TEST(NodeMemoryTest, AFailureIsUnconfirmedUntilTheSchedulerTellsOfOne) {
  NodeMemory memory;
  memory.Note(Update(1));
  EXPECT_FALSE(memory.Unconfirmed().has_value());
  memory.Note(report::Failed(Generation(1), absl::UnavailableError("a rank died")));
  memory.Note(Update(1));
  ASSERT_TRUE(memory.Unconfirmed().has_value());
  memory.Note(Update(1, v1::FAILED));
  EXPECT_FALSE(memory.Unconfirmed().has_value());
}

TEST(NodeMemoryTest, WhatDoesNotFitIntoARequestIsLeftOut) {
  NodeMemory memory;
  v1::NodeUpdate update = Update(1);
  AddPlan(&update, 1, "a");
  update.mutable_tensors(0)->mutable_versions()->Resize(kMaxRequestBytes / 8, ~uint64_t{0});
  memory.Note(update);
  v1::RegisterNodeRequest request;
  memory.AddTo(&request);
  EXPECT_FALSE(request.has_recollection());
}

}  // namespace
}  // namespace addend::internal
