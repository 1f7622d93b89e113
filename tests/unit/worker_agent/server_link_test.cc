// The end of a link to a summation server: the reason that the agent is given, and the link's
// state.
#include "lib/link/server_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/transport/convoy.h"
#include "lib/transport/rdma/signals.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  absl::Status OnResult(const ServerLink*, const FrameHeader&, const EncodedBytes&) override {
    ADD_FAILURE();
    return absl::OkStatus();
  }
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

// A link of node 1 to shard 4 of server 2, from its handshake on.
class OpenLinkTest : public ::testing::Test, private ServerEvents {
 protected:
  ~OpenLinkTest() override {
    link_.Close(absl::CancelledError("the test ends"));
    node_.loop.Settle();
  }
  void Connect() { link_.Connect(&node_.tcp, {.host = "b"}, "why", absl::Seconds(1)); }
  void Open() {
    Connect();
    wire_ = node_.tcp.Open(Incarnation(9));
  }
  // The connection is there; the server has said nothing.
  void Meet() {
    Connect();
    wire_ = node_.tcp.Meet();
  }
  absl::Status Challenge(size_t bytes = sizeof(auth::Secret)) {
    return wire_->Deliver(Frame(FrameType::kChallenge), std::vector<std::byte>(bytes));
  }
  static FrameHeader Frame(FrameType type, uint16_t flags = 0) {
    FrameHeader header;
    header.type = type;
    header.flags = flags;
    header.partition = PartitionId(TensorId(6), 1);
    return header;
  }
  void PushContribution(uint32_t partition = 0) {
    FrameHeader header = Frame(FrameType::kContribution);
    header.partition = PartitionId(TensorId(6), partition);
    link_.Push(header, {}, nullptr);
  }

 private:
  MutableBytes RoomForResult(const ServerLink*, const FrameHeader&) override { return room_; }
  MutableBytes RoomForStamp(const ServerLink*, const FrameHeader&) override { return room_; }
  void OnStamp(const ServerLink*, const FrameHeader&, Bytes) override { Note("stamp"); }
  absl::Status OnResult(const ServerLink*, const FrameHeader&,
                        const EncodedBytes& result) override {
    Note(absl::StrFormat("%sresult of %d bytes", result.raw() ? "" : "encoded ",
                         result.bytes.size()));
    return absl::OkStatus();
  }
  void OnSendAgain(const ServerLink*, const FrameHeader&) override { Note("send again"); }
  void OnMoved(const ServerLink*, const FrameHeader&) override { Note("moved"); }
  void OnRecovered(const ServerLink*, const FrameHeader&) override { Note("recovered"); }
  void OnAborted(const ServerLink*, const FrameHeader&) override { Note("aborted"); }
  void OnLinkOpen(ServerLink*, Incarnation server) override {
    Note(absl::StrFormat("open to %d", server.value()));
  }
  void OnLinkLost(ServerLink*, const absl::Status& why) override { Note(Message(why)); }
  void Note(std::string event) { events_.push_back(std::move(event)); }

 protected:
  FakeNode node_;
  std::array<std::byte, 8> memory_{};
  MutableBytes room_{memory_};
  std::vector<std::string> events_;
  FakeLink* wire_ = nullptr;
  ServerLink link_{&node_.identity, static_cast<ServerEvents*>(this),   &node_.convoy, ServerId(2),
                   "server 2",
                   /*shard=*/4,     [this] { return node_.loop.Now(); }};
};

TEST_F(OpenLinkTest, HelloNamesTheNodeAndTheShard) {
  node_.identity.encrypt = true;
  link_.SetVersion(kWireVersion);
  Meet();
  ASSERT_THAT(wire_->types(), ElementsAre(FrameType::kHello));
  const FrameHeader& hello = wire_->frames[0].header;
  EXPECT_EQ(hello.version, kWireVersion);
  EXPECT_EQ(hello.job, JobId(3));
  EXPECT_EQ(hello.generation, Generation(1));
  EXPECT_EQ(hello.sender, 1u);
  EXPECT_EQ(hello.incarnation, Incarnation(7));
  EXPECT_EQ(hello.partition.value(), 4u);
  EXPECT_EQ(hello.flags, kFlagEncrypt);
  EXPECT_EQ(auth::DecodeOpening(wire_->frames[0].payload)->expires_unix_s, 4'102'444'800);
  ASSERT_TRUE(Challenge().ok());
  ASSERT_EQ(wire_->frames.size(), 2u);
  const FrameHeader& proof = wire_->frames[1].header;
  EXPECT_EQ(proof.type, FrameType::kProof);
  EXPECT_EQ(proof.job, JobId(3));
  EXPECT_EQ(proof.generation, Generation(1));
  EXPECT_EQ(proof.sender, 1u);
  EXPECT_EQ(proof.incarnation, Incarnation(7));
  EXPECT_EQ(link_.state(), ServerLink::State::kAwaitWelcome);
}

TEST_F(OpenLinkTest, HandshakeOpensTheLink) {
  EXPECT_FALSE(link_.met());
  Connect();
  EXPECT_EQ(link_.open_attempts(), 1);
  wire_ = node_.tcp.Open(Incarnation(9));
  EXPECT_THAT(events_, ElementsAre("open to 9"));
  EXPECT_TRUE(link_.open());
  EXPECT_TRUE(link_.met());
  EXPECT_FALSE(link_.closed());
  EXPECT_EQ(link_.open_attempts(), 0);
  EXPECT_EQ(link_.times_open(), 1);
  EXPECT_FALSE(link_.has_forgotten());
  EXPECT_EQ(link_.reason(), "why");
}

TEST_F(OpenLinkTest, FramesOutOfTheOrderOfTheHandshakeAreRefused) {
  Meet();
  EXPECT_TRUE(absl::IsUnauthenticated(wire_->Deliver(Frame(FrameType::kPing))));
  EXPECT_TRUE(absl::IsUnauthenticated(wire_->Deliver(Frame(FrameType::kHello, kFlagReply))));
  EXPECT_TRUE(absl::IsInvalidArgument(link_.OnFrame(Frame(FrameType::kChallenge), Payload())));
  EXPECT_FALSE(Challenge(31).ok()) << "there is room for 32 bytes";
  ASSERT_TRUE(Challenge().ok());
  EXPECT_TRUE(absl::IsUnauthenticated(Challenge())) << "a second challenge";
  const absl::Status unflagged = wire_->Deliver(Frame(FrameType::kHello));
  EXPECT_TRUE(absl::IsUnauthenticated(unflagged)) << "without the flag of an answer";
  EXPECT_THAT(unflagged.message(),
              HasSubstr("a HELLO frame came before the summation server had proved"));
  EXPECT_TRUE(absl::IsUnauthenticated(wire_->Deliver(Frame(FrameType::kResult))));
  const std::vector<std::byte> wrong(sizeof(auth::Secret));
  EXPECT_TRUE(absl::IsUnauthenticated(wire_->Deliver(Frame(FrameType::kHello, kFlagReply), wrong)));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(OpenLinkTest, HandshakeIsNotRepeatedOnAnOpenLink) {
  Open();
  EXPECT_TRUE(absl::IsInvalidArgument(Challenge()));
  EXPECT_TRUE(absl::IsInvalidArgument(wire_->Deliver(Frame(FrameType::kHello, kFlagReply))));
}

TEST_F(OpenLinkTest, EachFrameIsAnEvent) {
  Open();
  events_.clear();
  const std::vector<std::byte> payload(8);
  ASSERT_TRUE(wire_->Deliver(Frame(FrameType::kStamp), payload).ok());
  ASSERT_TRUE(wire_->Deliver(Frame(FrameType::kResult), payload).ok());
  for (const FrameType type : {FrameType::kSendAgain, FrameType::kMoved, FrameType::kRecover,
                               FrameType::kAborted, FrameType::kPing}) {
    ASSERT_TRUE(wire_->Deliver(Frame(type)).ok());
  }
  EXPECT_THAT(events_, ElementsAre("stamp", "result of 8 bytes", "send again", "moved", "recovered",
                                   "aborted"));
  EXPECT_TRUE(absl::IsUnimplemented(wire_->Deliver(Frame(FrameType::kAudit))));
  EXPECT_TRUE(absl::IsUnimplemented(wire_->Deliver(Frame(FrameType::kPing), payload)));
}

TEST_F(OpenLinkTest, PayloadWithoutRoomIsDropped) {
  Open();
  events_.clear();
  room_ = {};
  const std::vector<std::byte> payload(8);
  EXPECT_TRUE(wire_->Deliver(Frame(FrameType::kResult), payload).ok());
  EXPECT_TRUE(wire_->Deliver(Frame(FrameType::kStamp), payload).ok());
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(OpenLinkTest, ResultIsBeingReceivedFromItsFirstByteToItsLast) {
  Open();
  FrameHeader result = Frame(FrameType::kResult);
  result.payload_bytes = 8;
  ASSERT_EQ(link_.Place(result)->size(), 8u);
  EXPECT_TRUE(link_.IsReceiving(result.partition));
  EXPECT_FALSE(link_.IsReceiving(PartitionId(TensorId(6), 0)));
  ASSERT_TRUE(link_.OnFrame(result, Payload(Bytes(room_))).ok());
  EXPECT_FALSE(link_.IsReceiving(result.partition));
  ASSERT_TRUE(link_.Place(result).ok());
  wire_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_FALSE(link_.IsReceiving(result.partition));
}

TEST_F(OpenLinkTest, FramesOfALostConnectionAreForgotten) {
  Open();
  wire_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  EXPECT_EQ(events_.back(), "server 2: reset");
  EXPECT_TRUE(link_.has_forgotten());
  EXPECT_TRUE(link_.closed());
  EXPECT_EQ(link_.credit_bytes(), 0u);
  Open();
  EXPECT_EQ(link_.times_open(), 2);
  EXPECT_THAT(wire_->frames, IsEmpty());
}

TEST_F(OpenLinkTest, AttemptWithoutAConnectionMeetsNobody) {
  Open();
  wire_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  Connect();
  EXPECT_FALSE(link_.met());
  node_.tcp.Refuse(absl::UnavailableError("refused"));
  Connect();
  EXPECT_EQ(link_.open_attempts(), 2);
}

TEST_F(OpenLinkTest, LimitHoldsForThisAndForLaterConnections) {
  link_.LimitInFlight(100);
  Open();
  EXPECT_EQ(wire_->in_flight, 100u);
  link_.LimitInFlight(50);
  EXPECT_EQ(wire_->in_flight, 50u);
  wire_->in_flight = 0;
  link_.LimitInFlight(50);
  EXPECT_EQ(wire_->in_flight, 0u) << "nothing has changed";
}

TEST_F(OpenLinkTest, ServerIsAtWorkFromTheLastContributionToTheLastResult) {
  Open();
  EXPECT_EQ(link_.services(), 0u);
  PushContribution(0);
  PushContribution(1);
  node_.loop.Settle();
  node_.loop.Pass(absl::Seconds(3));
  EXPECT_EQ(link_.served(), absl::Seconds(3));
  link_.Arrived(PartitionId(TensorId(6), 0));
  link_.Arrived(PartitionId(TensorId(6), 0));
  node_.loop.Pass(absl::Seconds(2));
  EXPECT_EQ(link_.served(), absl::Seconds(5));
  link_.Arrived(PartitionId(TensorId(6), 1));
  node_.loop.Pass(absl::Seconds(7));
  EXPECT_EQ(link_.served(), absl::Seconds(5)) << "it has nothing to do";
  EXPECT_EQ(link_.services(), 1u);
  PushContribution(0);
  node_.loop.Settle();
  node_.loop.Pass(absl::Seconds(1));
  EXPECT_EQ(link_.served(), absl::Seconds(6));
  EXPECT_EQ(link_.services(), 2u);
  wire_->Close(absl::UnavailableError("reset"));
  node_.loop.Settle();
  node_.loop.Pass(absl::Seconds(1));
  EXPECT_EQ(link_.served(), absl::Seconds(6)) << "a lost connection awaits nothing";
}

TEST_F(OpenLinkTest, OtherFramesThanContributionsAreNoWork) {
  Open();
  link_.Push(Frame(FrameType::kRecover), {}, nullptr);
  node_.loop.Settle();
  node_.loop.Pass(absl::Seconds(3));
  EXPECT_EQ(link_.served(), absl::ZeroDuration());
}

TEST_F(OpenLinkTest, LinkThatIsGivenUpSendsNothing) {
  Open();
  link_.Close(absl::CancelledError("over"));
  absl::Status done;
  link_.Push(Frame(FrameType::kRecover), {}, [&](absl::Status why) { done = why; });
  EXPECT_TRUE(absl::IsCancelled(done));
  link_.Push(Frame(FrameType::kRecover), {}, nullptr);
  EXPECT_THAT(wire_->frames, IsEmpty());
  EXPECT_EQ(wire_->closed, absl::CancelledError("over"));
}

TEST_F(OpenLinkTest, ConnectionThatComesTooLateIsClosed) {
  Connect();
  link_.Close(absl::CancelledError("over"));
  wire_ = node_.tcp.Meet();
  EXPECT_TRUE(wire_->closed.has_value());
  EXPECT_THAT(wire_->frames, IsEmpty()) << "no HELLO";
  node_.loop.Settle();
  EXPECT_EQ(link_.state(), ServerLink::State::kEnded);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(OpenLinkTest, ResetLosesTheConnectionAndKeepsTheLink) {
  link_.Reset(absl::UnavailableError("nothing to reset"));
  Open();
  link_.Reset(absl::UnavailableError("bring it again"));
  node_.loop.Settle();
  EXPECT_EQ(events_.back(), "server 2: bring it again");
  EXPECT_EQ(link_.state(), ServerLink::State::kLost);
}

}  // namespace
}  // namespace addend
