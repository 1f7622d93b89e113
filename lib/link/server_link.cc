// The handshake, the frames of an open link, and the ends of connections.
#include "lib/link/server_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/rdma/signals.h"

namespace addend {
namespace {

// Keeps the reason of an unauthenticated peer for people, and drops its exit status, by which the
// job would end, and codes that rule out another attempt. A failed path stays: the fallback from
// RDMA to TCP harms nothing.
absl::Status Unproved(const absl::Status& why) {
  const bool path_failed = rdma::IsPathFailure(why);
  if (path_failed && !rdma::IsSaidByPeer(why)) return why;  // this end's own finding
  absl::Status reason = absl::UnauthenticatedError(Message(why));
  switch (why.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      reason = absl::Status(why.code(), Message(why));
      break;
    default:
      break;
  }
  return path_failed ? rdma::PathFailure(std::move(reason)) : reason;
}

}  // namespace

void ServerLink::Connect(Transport* transport, const Address& address, std::string reason,
                         absl::Duration timeout, const Shortcut& shortcut) {
  reason_ = std::move(reason);
  state_ = State::kConnecting;
  ++attempts_;
  met_ = false;
  auto dial = [this, transport, address, timeout] {
    transport_ = transport;
    transport_->Connect(address, shard_, this, timeout,
                        [this](absl::StatusOr<Link*> link) { OnConnected(link); });
  };
  if (shortcut.transport == nullptr) return dial();
  transport_ = shortcut.transport;
  transport_->Connect(shortcut.address, shard_, this, timeout,
                      [this, dial](absl::StatusOr<Link*> link) {
                        if (!link.ok() && !given_up()) return dial();
                        reason_ = "on the same machine";
                        OnConnected(link);
                      });
}

void ServerLink::OnConnected(const absl::StatusOr<Link*>& link) {
  if (!link.ok()) {
    outbox_.Clear(link.status());
    return Lose(rdma::IsSaidByPeer(link.status()) ? Unproved(link.status()) : link.status());
  }
  met_ = true;
  link_ = *link;
  link_->LimitInFlight(in_flight_bytes_);
  if (given_up()) return link_->Close(absl::CancelledError("the generation is over"));
  SayHello();
}

void ServerLink::Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place,
                      int64_t* handed_at, EncodeFn encode) {
  if (!given_up()) {
    if (header.type == FrameType::kContribution) work_.Await(header.partition);
    return outbox_.Push(header, payload, std::move(done), place, handed_at, std::move(encode));
  }
  if (done) done(absl::CancelledError("the link is closed"));
}

void ServerLink::LimitInFlight(size_t bytes) {
  if (bytes == in_flight_bytes_) return;
  in_flight_bytes_ = bytes;
  if (link_ != nullptr) link_->LimitInFlight(bytes);
}

void ServerLink::SayHello() {
  FrameHeader hello;
  hello.version = version_;
  hello.type = FrameType::kHello;
  hello.job = identity_->job;
  hello.generation = identity_->generation;
  hello.sender = identity_->node.value();
  hello.incarnation = identity_->incarnation;
  hello.partition = PartitionId(shard_);
  if (identity_->encrypt) hello.flags = kFlagEncrypt;
  handshake_.token = identity_->token;
  handshake_.terms = {.claim = identity_->claim(),
                      .node = identity_->incarnation,
                      .server = {},
                      .shard = shard_,
                      .encrypt = identity_->encrypt,
                      .node_nonce = auth::NewSecret(),
                      .server_nonce = {}};
  handshake_.opening = auth::Encode(
      {.expires_unix_s = handshake_.token.expires_unix_s, .nonce = handshake_.terms.node_nonce});
  link_->Send(hello, handshake_.opening, nullptr);
  state_ = State::kAwaitChallenge;
}

absl::Status ServerLink::CheckExpected(const FrameHeader& header) const {
  const FrameType type = header.type;
  bool expected = false;
  switch (state_) {
    case State::kAwaitChallenge:
      expected = type == FrameType::kChallenge;
      break;
    case State::kAwaitWelcome:
      expected = type == FrameType::kHello && (header.flags & kFlagReply) != 0;
      break;
    case State::kOpen:
      expected = type != FrameType::kChallenge && type != FrameType::kHello;
      break;
    default:
      break;
  }
  if (expected) return absl::OkStatus();
  if (state_ == State::kOpen) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a %s frame on a link that is open already", Name(type)));
  }
  return absl::UnauthenticatedError(absl::StrFormat(
      "the peer is not authenticated: a %s frame came before the summation server had proved that "
      "it knows the job's key",
      Name(type)));
}

absl::Status ServerLink::Answer(const FrameHeader& challenge, Bytes nonce) {
  if (nonce.size() != handshake_.terms.server_nonce.size()) {
    return absl::InvalidArgumentError("a CHALLENGE that is not of 32 bytes");
  }
  handshake_.terms.server = challenge.incarnation;
  std::copy(nonce.begin(), nonce.end(), handshake_.terms.server_nonce.begin());
  FrameHeader answer;
  answer.type = FrameType::kProof;
  answer.job = handshake_.terms.claim.job;
  answer.generation = handshake_.terms.claim.generation;
  answer.sender = handshake_.terms.claim.node.value();
  answer.incarnation = handshake_.terms.node;
  answer.partition = PartitionId(shard_);
  handshake_.proof = auth::ProofOf(auth::Side::kNode, handshake_.token.secret, handshake_.terms);
  link_->Send(answer, handshake_.proof, nullptr);
  state_ = State::kAwaitWelcome;
  return absl::OkStatus();
}

absl::Status ServerLink::OnWelcome(const FrameHeader& header, Bytes proof) {
  if (header.incarnation != handshake_.terms.server ||
      !auth::Same(proof,
                  auth::ProofOf(auth::Side::kServer, handshake_.token.secret, handshake_.terms))) {
    return absl::UnauthenticatedError(
        "what answers there does not know the job's key: it is not the summation server that the "
        "scheduler means");
  }
  if (handshake_.terms.encrypt) {
    ADDEND_RETURN_IF_ERROR(link_->Encrypt(
        {.send = auth::KeyOf(auth::Side::kNode, handshake_.token.secret, handshake_.terms),
         .receive = auth::KeyOf(auth::Side::kServer, handshake_.token.secret, handshake_.terms)}));
  }
  state_ = State::kOpen;
  ++times_open_;
  attempts_ = 0;
  outbox_.Attach(link_, transport_->traits(), /*encodes=*/version_ >= kEncodingsSince);
  events_->OnLinkOpen(this, header.incarnation);
  return absl::OkStatus();
}

absl::StatusOr<MutableBytes> ServerLink::Place(const FrameHeader& header) {
  if (given_up()) return MutableBytes();
  ADDEND_RETURN_IF_ERROR(CheckExpected(header));
  const bool greets = header.type == FrameType::kChallenge || header.type == FrameType::kHello;
  if (greets && header.payload_bytes == handshake_.heard.size())
    return MutableBytes(handshake_.heard);
  if (header.type == FrameType::kResult || header.type == FrameType::kStamp) {
    const MutableBytes room = header.type == FrameType::kResult
                                  ? events_->RoomForResult(this, header)
                                  : events_->RoomForStamp(this, header);
    if (room.empty()) return room;
    return rooms_.Place(header, room);
  }
  return absl::UnimplementedError(
      absl::StrFormat("an agent does not take a %s frame with a payload", Name(header.type)));
}

absl::Status ServerLink::OnFrame(const FrameHeader& header, Payload payload) {
  std::shared_ptr<Arena> buffer;
  if (header.type == FrameType::kResult || header.type == FrameType::kStamp) {
    buffer = rooms_.Take(header.partition);
  }
  if (given_up()) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(CheckExpected(header));
  if (header.type == FrameType::kChallenge) return Answer(header, payload.bytes());
  if (header.type == FrameType::kHello) return OnWelcome(header, payload.bytes());
  absl::Status status = OnServerFrame(header, payload.bytes());
  rooms_.Reuse(std::move(buffer));
  return status;
}

absl::Status ServerLink::OnServerFrame(const FrameHeader& header, Bytes payload) {
  // Place() has dropped a payload that no round waits for.
  const bool complete = payload.size() == header.payload_bytes;
  switch (header.type) {
    case FrameType::kResult:
      if (!complete) return absl::OkStatus();
      return events_->OnResult(this, header, {payload, header.encoding});
    case FrameType::kStamp:
      if (complete) events_->OnStamp(this, header, payload);
      return absl::OkStatus();
    case FrameType::kSendAgain:
      events_->OnSendAgain(this, header);
      return absl::OkStatus();
    case FrameType::kMoved:
      events_->OnMoved(this, header);
      return absl::OkStatus();
    case FrameType::kRecover:
      events_->OnRecovered(this, header);
      return absl::OkStatus();
    case FrameType::kAborted:
      events_->OnAborted(this, header);
      return absl::OkStatus();
    case FrameType::kPing:
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrFormat("this version of the agent does not take %s frames", Name(header.type)));
  }
}

void ServerLink::OnClosed(absl::Status why) {
  work_.OnConnectionLost(link_->sending_time());
  link_ = nullptr;
  const bool proved = state_ == State::kOpen;
  rooms_.Clear();
  outbox_.Detach();
  outbox_.Clear(why);
  Lose(proved ? why : Unproved(why));
}

void ServerLink::Close(const absl::Status& why) {
  if (given_up()) return;
  const bool connecting = state_ == State::kConnecting;
  state_ = connecting || link_ != nullptr ? State::kClosing : State::kEnded;
  outbox_.Detach();
  outbox_.Clear(why);
  if (link_ != nullptr) link_->Close(why);
}

void ServerLink::Reset(const absl::Status& why) {
  if (link_ != nullptr) link_->Close(why);
}

void ServerLink::Lose(const absl::Status& why) {
  if (given_up()) {
    state_ = State::kEnded;
    return;
  }
  state_ = State::kLost;
  ++times_lost_;
  path_failed_ = rdma::IsPathFailure(why);
  events_->OnLinkLost(this, WithText(why, absl::StrFormat("%s: %s", where_, Message(why))));
}

}  // namespace addend
