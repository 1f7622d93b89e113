#include "lib/member/announced.h"

#include <gtest/gtest.h>

namespace addend::internal {
namespace {

v1::NodeUpdate Update(uint32_t generation, uint64_t version) {
  v1::NodeUpdate update;
  update.set_generation(generation);
  update.set_plan_version(version);
  return update;
}

v1::Announced ToldBy(const NodeAnnounced& announced) {
  v1::WatchRequest watch;
  watch.mutable_member()->set_job_id(9);
  announced.AddTo(&watch);
  return watch.announced_size() == 0 ? v1::Announced() : watch.announced(0);
}

TEST(AnnouncedTest, ANodeKeepsTheHighestNumbersOfItsGeneration) {
  NodeAnnounced announced;
  EXPECT_EQ(ToldBy(announced).generation(), 0u);
  v1::NodeUpdate update = Update(2, 7);
  update.set_state(v1::READY);
  update.add_tensors()->set_tensor_id(4);
  announced.Note(update);
  announced.Note(Update(2, 3));   // a scheduler that has lost its last writes
  announced.Note(Update(1, 99));  // and more of them
  const v1::Announced told = ToldBy(announced);
  EXPECT_EQ(told.job_id(), 9u);
  EXPECT_EQ(told.generation(), 2u);
  EXPECT_EQ(told.plan_version(), 7u);
  EXPECT_EQ(told.tensor_id(), 4u);
  EXPECT_TRUE(told.began());
  announced.Note(Update(3, 8));
  EXPECT_EQ(ToldBy(announced).tensor_id(), 0u);
  EXPECT_FALSE(ToldBy(announced).began());
}

TEST(AnnouncedTest, AServerForgetsReleasedJobs) {
  ServerAnnounced announced;
  v1::ServerUpdate update;
  for (const uint64_t id : {1, 2}) {
    v1::JobReservation* const job = update.add_jobs();
    job->set_job_id(id);
    job->set_generation(1);
    job->set_plan_version(10 + id);
  }
  announced.Note(update);
  update.set_full(true);
  update.mutable_jobs()->RemoveLast();
  update.mutable_jobs(0)->set_plan_version(5);
  announced.Note(update);
  v1::WatchRequest watch;
  announced.AddTo(&watch);
  ASSERT_EQ(watch.announced_size(), 1);
  EXPECT_EQ(watch.announced(0).job_id(), 1u);
  EXPECT_EQ(watch.announced(0).plan_version(), 11u);
}

}  // namespace
}  // namespace addend::internal
