// Contributions in host memory: sent as they are, or summed first.
#include "services/worker_agent/host_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kElements = 1 << 18;  // 1 MiB: all that is summed in a turn of the loop

class HostSourceTest : public ::testing::Test, private ContributionSource::Listener {
 protected:
  std::shared_ptr<NodeTensor> Pushed(uint32_t number, uint32_t ranks) {
    auto tensor =
        *NodeTensor::Create(number, Floats("t", kElements), std::vector<bool>(ranks, true));
    tensor->SetPlan(TensorId(number), kElements, std::vector<PartitionOwner>(1));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      WriteFloats(tensor->contributions[rank]->memory(), {1.0f});
      EXPECT_TRUE(tensor->rounds.OnPush(rank, Round(1), false).ok());
    }
    EXPECT_TRUE(tensor->PrepareContribution().ok());
    return tensor;
  }
  void Begin(const std::shared_ptr<NodeTensor>& tensor, int32_t priority = 0) {
    source_.Begin({.tensor = tensor, .partition = 0, .round = Round(1), .priority = priority});
  }

  FakeLoop loop_;
  HostSource source_{&loop_, static_cast<ContributionSource::Listener*>(this)};
  std::vector<uint32_t> ready_;  // tensors' numbers

 private:
  void OnReady(PartitionPush push) override { ready_.push_back(push.tensor->number); }
  void OnReadable(const PartitionPush&) override { FAIL(); }
};

TEST_F(HostSourceTest, SingleRanksContributionIsReadyAtOnce) {
  Begin(Pushed(1, 1));
  EXPECT_THAT(ready_, ElementsAre(1));
}

TEST_F(HostSourceTest, SumsComeLaterTheMostUrgentFirst) {
  const auto tensor = Pushed(1, 2);
  Begin(tensor, 0);
  Begin(Pushed(2, 2), 0);
  Begin(Pushed(3, 2), 5);
  EXPECT_THAT(ready_, IsEmpty());
  loop_.Settle();
  EXPECT_THAT(ready_, ElementsAre(3, 1, 2));
  float sum = 0;
  std::memcpy(&sum, tensor->Contribution(0).data(), sizeof(sum));
  EXPECT_EQ(sum, 2.0f);
}

TEST_F(HostSourceTest, StoppedSourceIsNeverReady) {
  Begin(Pushed(1, 2));
  source_.Stop();
  loop_.Settle();
  EXPECT_THAT(ready_, IsEmpty());
  Begin(Pushed(2, 2));
  loop_.Settle();
  EXPECT_THAT(ready_, ElementsAre(2)) << "a later contribution is summed";
}

TEST_F(HostSourceTest, EverythingIsOnTheHost) {
  const auto tensor = Pushed(1, 1);
  EXPECT_TRUE(source_.Reads({.tensor = tensor, .partition = 0, .round = Round(1)}));
  EXPECT_TRUE(source_.MayEnd(*tensor, 0, /*on_host=*/true));
  bool there = false;
  source_.Bring(tensor, 0, [&](bool is_there) { there = is_there; });
  EXPECT_TRUE(there);
  EXPECT_THAT(source_.RanksIn(*tensor, 1), ElementsAre(1));
  EXPECT_EQ(source_.WhyOpen(*tensor), "");
}

}  // namespace
}  // namespace addend
