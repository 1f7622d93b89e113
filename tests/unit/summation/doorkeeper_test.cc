// The admission of links: claims, proofs, and the refusals that are counted.
#include "lib/summation/doorkeeper.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lib/summation/node_link.h"
#include "tests/unit/summation/job_fixture.h"

namespace addend {
namespace {

class DoorkeeperTest : public JobFixture {
 protected:
  DoorkeeperTest() {
    server_.incarnation = Incarnation(9);
    terms_.claim = {.job = kFixtureJob,
                    .generation = Generation(1),
                    .node = NodeId(1),
                    .expires_unix_s = absl::ToUnixSeconds(now_) + 60};
    terms_.server = server_.incarnation;
    terms_.node_nonce = auth::NewSecret();
    opening_ =
        auth::Encode({.expires_unix_s = terms_.claim.expires_unix_s, .nonce = terms_.node_nonce});
  }
  FrameHeader Hello(JobId job = kFixtureJob) {
    FrameHeader hello = Header(FrameType::kHello, 1);
    hello.job = job;
    hello.partition = PartitionId(terms_.shard);
    return hello;
  }
  auth::Secret ProofOf(const std::string& key) const {
    return auth::ProofOf(auth::Side::kNode, auth::TokenSecret(auth::BytesOf(key), terms_.claim),
                         terms_);
  }
  uint64_t Refused(Refusal reason) const {
    return context_.stats.links_refused[static_cast<size_t>(reason)];
  }
  // The link of node 1, with its handshake complete.
  void Join(NodeLink* sink, RecordingLink* link) {
    ASSERT_TRUE(sink->OnFrame(Hello(), Payload(Bytes(opening_))).ok());
    const auto nonce = link->Take(FrameType::kChallenge).at(0).payload;
    std::copy(nonce.begin(), nonce.end(), terms_.server_nonce.begin());
    const auth::Secret proof = ProofOf("secret");
    ASSERT_TRUE(sink->OnFrame(Header(FrameType::kProof, 1), Payload(Bytes(proof))).ok());
  }
  std::unique_ptr<NodeLink> MakeLink(RecordingLink* link) {
    return std::make_unique<NodeLink>(&doorkeeper_, link, &traits_, limits_,
                                      [this](NodeLink*) { ++closed_; });
  }

  JobShard job_{spec_, memory_, JobTotals(), &context_};
  Doorkeeper doorkeeper_{&server_,
                         &context_.stats,
                         [this](JobId id) { return id == kFixtureJob ? &job_ : nullptr; },
                         {.steady = [this] { return now_; }, .cluster = [this] { return now_; }}};
  auth::LinkTerms terms_;
  std::array<std::byte, auth::kOpeningBytes> opening_;
  int closed_ = 0;
};

TEST_F(DoorkeeperTest, TermsRepeatTheClaimAndAddAFreshNonce) {
  const auto terms = doorkeeper_.TermsFor("peer", Hello(), opening_);
  ASSERT_TRUE(terms.ok()) << terms.status();
  EXPECT_EQ(terms->claim.node, NodeId(1));
  EXPECT_EQ(terms->claim.expires_unix_s, terms_.claim.expires_unix_s);
  EXPECT_EQ(terms->server, Incarnation(9));
  EXPECT_EQ(terms->node_nonce, terms_.node_nonce);
  EXPECT_NE(terms->server_nonce, doorkeeper_.TermsFor("peer", Hello(), opening_)->server_nonce);
}

TEST_F(DoorkeeperTest, OpeningOfTheWrongSizeIsInvalid) {
  const auto terms = doorkeeper_.TermsFor("peer", Hello(), Bytes(opening_).first(8));
  EXPECT_TRUE(absl::IsInvalidArgument(terms.status()));
}

TEST_F(DoorkeeperTest, UnknownJobIsRefusedAtEveryStep) {
  EXPECT_TRUE(
      absl::IsUnauthenticated(doorkeeper_.TermsFor("peer", Hello(JobId(8)), opening_).status()));
  const auth::Secret proof = ProofOf("secret");
  terms_.claim.job = JobId(8);
  EXPECT_TRUE(absl::IsUnauthenticated(doorkeeper_.TokenOf("peer", terms_, proof).status()));
  EXPECT_EQ(Refused(Refusal::kUnknownJob), 2u);
}

TEST_F(DoorkeeperTest, ProofIsMadeWithTheTokenOfTheJobsKey) {
  EXPECT_TRUE(doorkeeper_.TokenOf("peer", terms_, ProofOf("secret")).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(
      doorkeeper_.TokenOf("peer", terms_, ProofOf("another key")).status()));
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
}

TEST_F(DoorkeeperTest, ProofOfOtherTermsIsWrong) {
  const auth::Secret recorded = ProofOf("secret");
  terms_.server_nonce = auth::NewSecret();
  EXPECT_FALSE(doorkeeper_.TokenOf("peer", terms_, recorded).ok());
  EXPECT_EQ(Refused(Refusal::kWrongToken), 1u);
}

TEST_F(DoorkeeperTest, TokenExpiresByTheSchedulersClockAndItsTolerance) {
  const auth::Secret proof = ProofOf("secret");
  now_ += absl::Seconds(60) + auth::kClockSkew;
  EXPECT_TRUE(doorkeeper_.TokenOf("peer", terms_, proof).ok());
  now_ += absl::Seconds(1);
  EXPECT_TRUE(absl::IsUnauthenticated(doorkeeper_.TokenOf("peer", terms_, proof).status()));
  EXPECT_EQ(Refused(Refusal::kExpiredToken), 1u);
}

TEST_F(DoorkeeperTest, NodeOutsideTheGenerationIsCountedAsNoMember) {
  const auto node = MakeNode();
  terms_.claim.node = NodeId(2);
  EXPECT_TRUE(absl::IsPermissionDenied(doorkeeper_.Admit(&node->port, terms_).status()));
  EXPECT_EQ(Refused(Refusal::kNotMember), 1u);
}

TEST_F(DoorkeeperTest, HandshakeMayTakeTenSeconds) {
  const absl::Time since = now_;
  now_ += Doorkeeper::kHandshakePatience - absl::Milliseconds(1);
  EXPECT_TRUE(doorkeeper_.CheckPatience("peer", since).ok());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(doorkeeper_.CheckPatience("peer", since)));
  EXPECT_EQ(Refused(Refusal::kTooLate), 1u);
}

TEST_F(DoorkeeperTest, LinkIsAMemberAfterItsProof) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  EXPECT_FALSE(sink->is_member());
  Join(sink.get(), &link);
  EXPECT_TRUE(sink->is_member());
  EXPECT_EQ(link.shared, kFixtureJob.value());
  ASSERT_EQ(link.Count(FrameType::kHello), 1u);
  const auth::Secret expected = auth::ProofOf(
      auth::Side::kServer, auth::TokenSecret(auth::BytesOf(spec_.key), terms_.claim), terms_);
  EXPECT_TRUE(auth::Same(link.Take(FrameType::kHello)[0].payload, expected));
  sink->OnClosed(absl::UnavailableError("gone"));
  EXPECT_EQ(closed_, 1);
}

TEST_F(DoorkeeperTest, HandshakeFramesComeOnceAndInOrder) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(Header(FrameType::kProof, 1), Payload())));
  Join(sink.get(), &link);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(Hello(), Payload(Bytes(opening_)))));
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(Header(FrameType::kProof, 1), Payload())));
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, FrameBeforeTheProofIsRefused) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  EXPECT_TRUE(absl::IsUnauthenticated(sink->OnFrame(Header(FrameType::kPing, 1), Payload())));
  FrameHeader header = Header(FrameType::kContribution, 1, 0, 1);
  header.payload_bytes = 4;
  EXPECT_TRUE(absl::IsUnauthenticated(sink->Place(header).status()));
  EXPECT_EQ(Refused(Refusal::kNoToken), 2u);
}

TEST_F(DoorkeeperTest, FrameThatNamesAnotherNodeThanItsLinkIsRefused) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  Join(sink.get(), &link);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(Header(FrameType::kPing, 0), Payload())));
  ASSERT_TRUE(sink->OnFrame(Header(FrameType::kPing, 1), Payload()).ok());
  EXPECT_TRUE(link.Last().flags & kFlagReply);
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, LinkWhoseHandshakeTakesTooLongIsClosedOnce) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  sink->CheckPatience();
  EXPECT_FALSE(link.closed.has_value());
  now_ += Doorkeeper::kHandshakePatience;
  sink->CheckPatience();
  EXPECT_TRUE(link.closed.has_value());
  sink->CheckPatience();
  EXPECT_EQ(Refused(Refusal::kTooLate), 1u);
}

TEST_F(DoorkeeperTest, PingIsAnsweredUnlessTheNodeHasEnoughToRead) {
  limits_.window_bytes = 1;  // the frames wait for the first
  RecordingLink link;
  const auto sink = MakeLink(&link);
  Join(sink.get(), &link);
  FrameHeader reply = Header(FrameType::kPing, 1);
  reply.flags = kFlagReply;
  ASSERT_TRUE(sink->OnFrame(reply, Payload()).ok());
  EXPECT_EQ(link.Count(FrameType::kPing), 0u) << "an answer has no answer";
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(sink->OnFrame(Header(FrameType::kPing, 1), Payload()).ok());
  }
  EXPECT_EQ(link.Count(FrameType::kPing), 1u);
  EXPECT_EQ(sink->queued(), 64u);
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, FrameOfAnotherJobOrGenerationThanItsLinkIsRefused) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  Join(sink.get(), &link);
  FrameHeader header = Header(FrameType::kPing, 1);
  header.job = JobId(99);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(header, Payload())));
  header = Header(FrameType::kPing, 1);
  header.generation = Generation(2);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(header, Payload())));
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, ProofIsOfTheJobGenerationAndNodeOfItsHello) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  ASSERT_TRUE(sink->OnFrame(Hello(), Payload(Bytes(opening_))).ok());
  FrameHeader proof = Header(FrameType::kProof, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(proof, Payload())));
  proof = Header(FrameType::kProof, 1);
  proof.job = JobId(99);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(proof, Payload())));
  proof = Header(FrameType::kProof, 1);
  proof.generation = Generation(2);
  EXPECT_TRUE(absl::IsInvalidArgument(sink->OnFrame(proof, Payload())));
  EXPECT_FALSE(sink->is_member());
}

TEST_F(DoorkeeperTest, PayloadsOfTheHandshakeHaveRoomForAnOpeningAndNoMore) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  FrameHeader hello = Hello();
  hello.payload_bytes = auth::kOpeningBytes;
  EXPECT_EQ(sink->Place(hello)->size(), auth::kOpeningBytes);
  hello.payload_bytes = auth::kOpeningBytes + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(sink->Place(hello).status()));
}

TEST_F(DoorkeeperTest, LinkThatCannotBeEncryptedAsAgreedIsNotWelcome) {
  RecordingLink link;  // encrypts nothing
  const auto sink = MakeLink(&link);
  FrameHeader hello = Hello();
  hello.flags = kFlagEncrypt;
  ASSERT_TRUE(sink->OnFrame(hello, Payload(Bytes(opening_))).ok());
  const auto nonce = link.Take(FrameType::kChallenge).at(0).payload;
  std::copy(nonce.begin(), nonce.end(), terms_.server_nonce.begin());
  terms_.encrypt = true;
  const auth::Secret proof = ProofOf("secret");
  EXPECT_TRUE(
      absl::IsUnimplemented(sink->OnFrame(Header(FrameType::kProof, 1), Payload(Bytes(proof)))));
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, LinkOfAJobStartsWithTheJobsBytesInFlight) {
  job_.LimitInFlight(123, SendLimits::kUnlimited);
  RecordingLink link;
  const auto sink = MakeLink(&link);
  Join(sink.get(), &link);
  EXPECT_EQ(link.in_flight, 123u);
  job_.LimitInFlight(45, SendLimits::kUnlimited);
  EXPECT_EQ(link.in_flight, 45u);
  sink->OnClosed(absl::UnavailableError("gone"));
}

TEST_F(DoorkeeperTest, PatienceEndsWithTheHandshake) {
  RecordingLink link;
  const auto sink = MakeLink(&link);
  Join(sink.get(), &link);
  now_ += absl::Hours(1);
  sink->CheckPatience();
  EXPECT_FALSE(link.closed.has_value());
  sink->OnClosed(absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace addend
