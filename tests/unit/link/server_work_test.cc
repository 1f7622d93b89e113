#include "lib/link/server_work.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

class ServerWorkTest : public testing::Test {
 protected:
  void Pass(int seconds) { now_ += absl::Seconds(seconds); }
  absl::Duration Served() const { return work_.served(absl::ZeroDuration()); }

  absl::Time now_ = absl::UnixEpoch();
  ServerWork work_{[this] { return now_; }};
  const PartitionId one_{TensorId(1), 0}, other_{TensorId(1), 1};
};

TEST_F(ServerWorkTest, BeginsWhenAllContributionsAreSent) {
  work_.SetQueued(true);
  work_.Await(one_);
  Pass(5);
  EXPECT_EQ(Served(), absl::ZeroDuration()) << "they are still in the send queue";
  work_.SetQueued(false);
  Pass(2);
  EXPECT_EQ(Served(), absl::Seconds(2));
}

TEST_F(ServerWorkTest, EndsWithTheLastResult) {
  work_.Await(one_);
  work_.Await(other_);
  Pass(1);
  work_.Arrived(one_);
  Pass(1);
  work_.Arrived(other_);
  Pass(7);
  EXPECT_EQ(Served(), absl::Seconds(2));
  EXPECT_EQ(work_.services(), 1u);
  work_.Await(one_);
  EXPECT_EQ(work_.services(), 2u);
}

TEST_F(ServerWorkTest, IncludesTheSendingOverAllConnections) {
  work_.Await(one_);
  work_.OnConnectionLost(absl::Seconds(3));
  Pass(1);
  EXPECT_EQ(Served(), absl::Seconds(3)) << "a lost connection awaits nothing";
  EXPECT_EQ(work_.served(absl::Seconds(4)), absl::Seconds(7));
}

TEST_F(ServerWorkTest, TellsTheSendingSinceTheLastQuestion) {
  EXPECT_EQ(work_.TakeSending(absl::Seconds(2)), absl::Seconds(2));
  EXPECT_EQ(work_.TakeSending(absl::Seconds(2)), absl::ZeroDuration());
  work_.OnConnectionLost(absl::Seconds(3));
  EXPECT_EQ(work_.TakeSending(absl::Seconds(4)), absl::Seconds(5));
}

}  // namespace
}  // namespace addend
