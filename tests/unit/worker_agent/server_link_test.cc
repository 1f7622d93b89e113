// The end of a link to a summation server: the reason that the agent is given, and the link's
// state.
#include "services/worker_agent/server_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/transport/convoy.h"
#include "lib/transport/rdma/signals.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

// A connection whose peer takes everything and sends nothing.
class SilentLink final : public Link {
 public:
  void Send(const FrameHeader&, Bytes, Done done) override {
    if (done) done(absl::OkStatus());
  }
  void Close(absl::Status) override {}
  std::string peer() const override { return "peer"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}
};

// A transport whose connections the test decides.
class HeldTransport final : public Transport {
 public:
  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return stats_; }
  absl::StatusOr<Address> Listen(const Address&, AcceptFn) override {
    return absl::UnimplementedError("the agent does not listen here");
  }
  void Connect(const Address&, uint32_t, Sink*, absl::Duration, ConnectFn connected) override {
    connected_ = std::move(connected);
  }
  void Decide(absl::StatusOr<Link*> link) { std::exchange(connected_, nullptr)(std::move(link)); }

 private:
  const Traits traits_{.name = "held", .reach = "process", .in_flight_max = 1000};
  TransportStats stats_;
  ConnectFn connected_;
};

class ServerLinkTest : public ::testing::Test, private ServerEvents {
 protected:
  // The connection could not be made, or ends before the server has proved its identity.
  absl::Status WhyAttemptFailed(absl::Status why) {
    link_.Connect(&transport_, {}, "the only transport", absl::Seconds(1));
    transport_.Decide(std::move(why));
    return *std::exchange(lost_, std::nullopt);
  }
  absl::Status WhyUnprovedLinkEnded(absl::Status why) {
    link_.Connect(&transport_, {}, "the only transport", absl::Seconds(1));
    transport_.Decide(&silent_);
    link_.OnClosed(std::move(why));
    return *std::exchange(lost_, std::nullopt);
  }

 private:
  MutableBytes RoomForResult(const ServerLink*, const FrameHeader&) override { return {}; }
  MutableBytes RoomForStamp(const ServerLink*, const FrameHeader&) override { return {}; }
  void OnStamp(const ServerLink*, const FrameHeader&, Bytes) override { FAIL(); }
  void OnResult(const ServerLink*, const FrameHeader&, Bytes) override { FAIL(); }
  void OnSendAgain(const ServerLink*, const FrameHeader&) override { FAIL(); }
  void OnMoved(const ServerLink*, const FrameHeader&) override { FAIL(); }
  void OnRecovered(const ServerLink*, const FrameHeader&) override { FAIL(); }
  void OnAborted(const ServerLink*, const FrameHeader&) override { FAIL(); }
  void OnLinkOpen(ServerLink*, Incarnation) override { FAIL(); }
  void OnLinkLost(ServerLink*, const absl::Status& why) override { lost_ = why; }

  NodeIdentity identity_{.job = JobId(3),
                         .generation = Generation(1),
                         .node = NodeId(0),
                         .incarnation = Incarnation(7),
                         .token = {.expires_unix_s = 4'102'444'800, .secret = {std::byte{1}}}};
  Convoy convoy_{SendLimits()};

 protected:
  SilentLink silent_;
  HeldTransport transport_;
  std::optional<absl::Status> lost_;
  ServerLink link_{&identity_, static_cast<ServerEvents*>(this), &convoy_, ServerId(1), "server 1",
                   /*shard=*/0};
};

const absl::Status kFatal =
    WithKind(absl::InvalidArgumentError("other versions"), FailureKind::kMismatch);

TEST_F(ServerLinkTest, ExitStatusAndFinalCodeOfAnUnauthenticatedPeerAreDropped) {
  for (const absl::Status& why :
       {WhyAttemptFailed(rdma::SaidByPeer(kFatal)), WhyUnprovedLinkEnded(kFatal),
        WhyUnprovedLinkEnded(rdma::SaidByPeer(kFatal))}) {
    EXPECT_EQ(ExitCodeOf(why), ExitCodeOf(absl::UnauthenticatedError(""))) << why;
    EXPECT_TRUE(absl::IsUnauthenticated(why)) << why;
    EXPECT_THAT(Message(why), HasSubstr("other versions"));
    EXPECT_FALSE(link_.path_failed());
  }
}

TEST_F(ServerLinkTest, UnauthenticatedPeerMayReportAFailedPath) {
  for (const bool connected : {false, true}) {
    const absl::Status said = rdma::PathFailure(rdma::SaidByPeer(kFatal));
    const absl::Status why = connected ? WhyUnprovedLinkEnded(said) : WhyAttemptFailed(said);
    EXPECT_TRUE(link_.path_failed());
    EXPECT_TRUE(absl::IsUnauthenticated(why)) << why;
    EXPECT_EQ(ExitCodeOf(why), ExitCodeOf(absl::UnauthenticatedError(""))) << why;
  }
}

TEST_F(ServerLinkTest, ErrorFoundByThisEndKeepsItsCodeAndExitStatus) {
  const absl::Status found = MakeFailure(FailureKind::kPermission, "no locked memory");
  for (const absl::Status& why :
       {WhyAttemptFailed(found), WhyAttemptFailed(rdma::PathFailure(found)),
        WhyUnprovedLinkEnded(rdma::PathFailure(found))}) {
    EXPECT_EQ(why.code(), found.code()) << why;
    EXPECT_EQ(KindOf(why), FailureKind::kPermission) << why;
  }
}

TEST_F(ServerLinkTest, UnavailableUnauthenticatedPeerIsTriedAgain) {
  const absl::Status why = WhyAttemptFailed(
      rdma::SaidByPeer(WithKind(absl::UnavailableError("stops"), FailureKind::kVersion)));
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_EQ(ExitCodeOf(why), ExitCodeOf(absl::UnavailableError("")));
}

TEST_F(ServerLinkTest, StateFollowsTheConnection) {
  EXPECT_EQ(link_.state(), ServerLink::State::kNew);
  EXPECT_FALSE(link_.closed());
  link_.Connect(&transport_, {}, "the only transport", absl::Seconds(1));
  EXPECT_EQ(link_.state(), ServerLink::State::kConnecting);
  transport_.Decide(&silent_);
  EXPECT_EQ(link_.state(), ServerLink::State::kAwaitChallenge);
  link_.OnClosed(absl::UnavailableError("reset"));
  EXPECT_EQ(link_.state(), ServerLink::State::kLost);
  EXPECT_TRUE(link_.closed());
  EXPECT_TRUE(link_.has_forgotten());
  EXPECT_EQ(lost_->code(), absl::StatusCode::kUnavailable);
}

TEST_F(ServerLinkTest, LinkThatIsGivenUpEndsWithoutAnEvent) {
  link_.Connect(&transport_, {}, "the only transport", absl::Seconds(1));
  link_.Close(absl::CancelledError("the generation is over"));
  EXPECT_EQ(link_.state(), ServerLink::State::kClosing);
  EXPECT_FALSE(link_.closed()) << "the transport still makes the connection";
  transport_.Decide(absl::UnavailableError("refused"));
  EXPECT_EQ(link_.state(), ServerLink::State::kEnded);
  EXPECT_TRUE(link_.closed());
  EXPECT_FALSE(lost_.has_value());
}

TEST_F(ServerLinkTest, LinkThatWasNeverConnectedEndsAtOnce) {
  link_.Close(absl::CancelledError("the generation is over"));
  EXPECT_EQ(link_.state(), ServerLink::State::kEnded);
  EXPECT_TRUE(link_.given_up());
}

TEST_F(ServerLinkTest, ClosingLinkGivesNoRoomAndTakesNoFrame) {
  link_.Connect(&transport_, {}, "the only transport", absl::Seconds(1));
  transport_.Decide(&silent_);
  link_.Close(absl::CancelledError("the generation is over"));
  FrameHeader result;
  result.type = FrameType::kResult;
  result.payload_bytes = 8;
  const auto room = link_.Place(result);
  ASSERT_TRUE(room.ok());
  EXPECT_TRUE(room->empty());
  EXPECT_TRUE(link_.OnFrame(result, Payload()).ok());
  link_.OnClosed(absl::CancelledError("closed"));
  EXPECT_EQ(link_.state(), ServerLink::State::kEnded);
  EXPECT_FALSE(lost_.has_value());
}

}  // namespace
}  // namespace addend
