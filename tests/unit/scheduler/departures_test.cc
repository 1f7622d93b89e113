// Departed ranks, and the rounds that other nodes wait for.
#include "services/scheduler/departures.h"

#include <gtest/gtest.h>

#include "lib/base/limits.h"

namespace addend {
namespace {

class JobDeparturesTest : public testing::Test {
 protected:
  static v1::HeartbeatRequest Beat(uint32_t departed, int awaited = 0,
                                   const std::string& name = "w") {
    v1::HeartbeatRequest beat;
    beat.set_departed_ranks(departed);
    for (int i = 0; i < awaited; ++i) Await(&beat, 0, name, static_cast<uint64_t>(i) + 1);
    return beat;
  }
  static void Await(v1::HeartbeatRequest* beat, uint32_t id, const std::string& name,
                    uint64_t round) {
    v1::AwaitedRound* const awaited = beat->add_awaited();
    awaited->set_tensor_id(id);
    awaited->set_name(name);
    awaited->set_round(round);
  }
  int Awaited() const {
    v1::NodeUpdate update;
    update.add_awaited();
    departures_.Fill(tensors_, &update);
    return update.awaited_size();
  }

  Agreements tensors_;
  JobDepartures departures_;
};

TEST_F(JobDeparturesTest, HeartbeatIsNewsOnce) {
  EXPECT_FALSE(departures_.Take(NodeId(0), Beat(0)));
  EXPECT_TRUE(departures_.Take(NodeId(0), Beat(1)));
  EXPECT_FALSE(departures_.Take(NodeId(0), Beat(2)));
  EXPECT_TRUE(departures_.Take(NodeId(1), Beat(1)));
  EXPECT_TRUE(departures_.Take(NodeId(2), Beat(0, 2)));
  EXPECT_FALSE(departures_.Take(NodeId(3), Beat(0, 2))) << "the same rounds";
}

TEST_F(JobDeparturesTest, RoundsAreToldOnceARankHasDeparted) {
  v1::HeartbeatRequest beat;
  Await(&beat, 7, "w", 3);
  departures_.Take(NodeId(0), beat);
  v1::NodeUpdate update;
  departures_.Fill(tensors_, &update);
  EXPECT_FALSE(update.departed());
  EXPECT_EQ(update.awaited_size(), 0);
  departures_.Take(NodeId(1), Beat(1));
  departures_.Fill(tensors_, &update);
  EXPECT_TRUE(update.departed());
  ASSERT_EQ(update.awaited_size(), 1);
  EXPECT_EQ(update.awaited(0).tensor_id(), 7u);
  EXPECT_EQ(update.awaited(0).name(), "w");
  EXPECT_EQ(update.awaited(0).round(), 3u);
}

TEST_F(JobDeparturesTest, PlannedTensorIsAwaitedByItsNumberOnly) {
  departures_.Take(NodeId(0), Beat(1, 1));
  uint64_t next = 1;
  v1::TensorDescriptor descriptor;
  descriptor.set_name("w");
  DeclaredTensor* const tensor = tensors_.Declare("a", NodeId(0), descriptor, {}, &next).tensor;
  EXPECT_EQ(Awaited(), 1);
  tensor->stage = v1::AgreementRecord::PLANNED;
  EXPECT_EQ(Awaited(), 0);
  v1::HeartbeatRequest beat;
  Await(&beat, 7, "w", 1);
  departures_.Take(NodeId(0), beat);
  EXPECT_EQ(Awaited(), 1);
}

TEST_F(JobDeparturesTest, RoundsOfAHeartbeatAndOfAJobAreLimited) {
  departures_.Take(NodeId(0), Beat(1, 17));
  EXPECT_EQ(Awaited(), 16);
  for (int i = 0; i < 20; ++i) departures_.Take(NodeId(0), Beat(0, 16, "w" + std::to_string(i)));
  EXPECT_EQ(Awaited(), 256);
}

TEST_F(JobDeparturesTest, NamesThatNoTensorHasAreIgnored) {
  departures_.Take(NodeId(0), Beat(1, 1, std::string(kMaxNameBytes + 1, 'n')));
  EXPECT_EQ(Awaited(), 0);
  departures_.Take(NodeId(0), Beat(1, 1, std::string(kMaxNameBytes, 'n')));
  EXPECT_EQ(Awaited(), 1);
}

TEST_F(JobDeparturesTest, RoundsOfAnUndeclaredTensorAreForgotten) {
  departures_.Take(NodeId(0), Beat(1, 2, "w"));
  departures_.Take(NodeId(0), Beat(1, 1, "x"));
  departures_.Forget("w");
  EXPECT_EQ(Awaited(), 1);
}

}  // namespace
}  // namespace addend
