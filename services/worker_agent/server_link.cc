#include "services/worker_agent/server_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/exit_codes.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/rdma/signals.h"

namespace addend {

void ServerLink::Connect(Transport* transport, const Address& address, std::string reason,
                         absl::Duration timeout) {
  transport_ = transport;
  reason_ = std::move(reason);
  connecting_ = true;
  ++attempts_;
  closed_ = false;
  transport_->Connect(address, shard_, this, timeout, [this](absl::StatusOr<Link*> link) {
    connecting_ = false;
    if (!link.ok()) {
      closed_ = true;
      outbox_.Clear(link.status());
      return Lose(link.status());
    }
    link_ = *link;
    link_->LimitInFlight(in_flight_bytes_);
    if (leaving_) return link_->Close(absl::CancelledError("the generation is over"));
    SayHello();
  });
}

void ServerLink::Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place,
                      int64_t* handed_at) {
  if (!leaving_) {
    if (header.type == FrameType::kContribution) Await(header.partition);
    return outbox_.Push(header, payload, std::move(done), place, handed_at);
  }
  if (done) done(absl::CancelledError("the link is closed"));
}

void ServerLink::Await(PartitionId partition) {
  if (awaited_.empty()) ++services_;
  awaited_.insert(partition);
  CountSumming();
}

void ServerLink::Arrived(PartitionId partition) {
  if (awaited_.erase(partition) > 0) CountSumming();
}

void ServerLink::SetWaiting(bool waiting) {
  waiting_ = waiting;
  CountSumming();
}

// The server's own time, without a node that is still sending: all has been sent.
void ServerLink::CountSumming() {
  const bool summing = !awaited_.empty() && !waiting_;
  if (summing == (summing_since_ != absl::InfiniteFuture())) return;
  const absl::Time now = absl::Now();
  if (!summing) summing_ += now - summing_since_;
  summing_since_ = summing ? now : absl::InfiniteFuture();
}

absl::Duration ServerLink::served() const {
  const absl::Time now = absl::Now();
  const absl::Duration sending = link_ == nullptr ? absl::ZeroDuration() : link_->sending_time();
  return sending_ + sending + summing_ + (now - std::min(now, summing_since_));
}

void ServerLink::LimitInFlight(size_t bytes) {
  if (bytes == in_flight_bytes_) return;
  in_flight_bytes_ = bytes;
  if (link_ != nullptr) link_->LimitInFlight(bytes);
}

void ServerLink::SayHello() {
  FrameHeader hello;
  hello.type = FrameType::kHello;
  hello.job = identity_->job;
  hello.generation = identity_->generation;
  hello.sender = identity_->node.value();
  hello.incarnation = identity_->incarnation;
  hello.partition = PartitionId(shard_);
  if (identity_->encrypt) hello.flags = kFlagEncrypt;
  token_ = identity_->token;
  terms_ = {.claim = identity_->claim(),
            .node = identity_->incarnation,
            .server = {},
            .shard = shard_,
            .encrypt = identity_->encrypt,
            .node_nonce = auth::NewSecret(),
            .server_nonce = {}};
  opening_ = auth::Encode({.expires_unix_s = token_.expires_unix_s, .nonce = terms_.node_nonce});
  link_->Send(hello, opening_, nullptr);
}

absl::Status ServerLink::Answer(const FrameHeader& challenge, Bytes nonce) {
  if (open_ || terms_.server != Incarnation() || nonce.size() != terms_.server_nonce.size()) {
    return absl::InvalidArgumentError("a CHALLENGE out of its turn, or not of 32 bytes");
  }
  terms_.server = challenge.incarnation;
  std::copy(nonce.begin(), nonce.end(), terms_.server_nonce.begin());
  FrameHeader answer;
  answer.type = FrameType::kProof;
  answer.job = terms_.claim.job;
  answer.generation = terms_.claim.generation;
  answer.sender = terms_.claim.node.value();
  answer.incarnation = terms_.node;
  answer.partition = PartitionId(shard_);
  proof_ = auth::ProofOf(auth::Side::kNode, token_.secret, terms_);
  link_->Send(answer, proof_, nullptr);
  return absl::OkStatus();
}

// What answers at a server's address could be somebody else.
absl::Status ServerLink::OnWelcome(const FrameHeader& header, Bytes proof) {
  if (open_ || header.incarnation != terms_.server ||
      !auth::Same(proof, auth::ProofOf(auth::Side::kServer, token_.secret, terms_))) {
    return absl::UnauthenticatedError(
        "what answers there does not know the job's key: it is not the summation server that the "
        "scheduler means");
  }
  if (terms_.encrypt) {
    ADDEND_RETURN_IF_ERROR(
        link_->Encrypt({.send = auth::KeyOf(auth::Side::kNode, token_.secret, terms_),
                        .receive = auth::KeyOf(auth::Side::kServer, token_.secret, terms_)}));
  }
  open_ = true;
  ++times_open_;
  attempts_ = 0;
  outbox_.Attach(link_, transport_->traits());
  events_->OnLinkOpen(this, header.incarnation);
  return absl::OkStatus();
}

absl::StatusOr<MutableBytes> ServerLink::Place(const FrameHeader& header) {
  const bool greets = header.type == FrameType::kChallenge || header.type == FrameType::kHello;
  if (greets && header.payload_bytes == heard_.size()) return MutableBytes(heard_);
  if (header.type == FrameType::kResult || header.type == FrameType::kStamp) {
    const MutableBytes room = header.type == FrameType::kResult
                                  ? events_->RoomForResult(this, header)
                                  : events_->RoomForStamp(this, header);
    if (!room.empty()) placed_.insert(header.partition);
    return room;
  }
  return absl::UnimplementedError(
      absl::StrFormat("an agent does not take a %s frame with a payload", Name(header.type)));
}

absl::Status ServerLink::OnFrame(const FrameHeader& header, Payload payload) {
  if (header.type == FrameType::kResult || header.type == FrameType::kStamp) {
    placed_.erase(header.partition);
  }
  if (leaving_) return absl::OkStatus();
  switch (header.type) {
    case FrameType::kChallenge:
      return Answer(header, payload.bytes());
    case FrameType::kHello:
      return OnWelcome(header, payload.bytes());
    case FrameType::kResult:
      // Dropped by Place(): nobody waits for it.
      if (payload.bytes().size() == header.payload_bytes)
        events_->OnResult(this, header, payload.bytes());
      return absl::OkStatus();
    case FrameType::kStamp:
      if (payload.bytes().size() == header.payload_bytes)
        events_->OnStamp(this, header, payload.bytes());
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
  sending_ += link_->sending_time();
  link_ = nullptr;
  open_ = false;
  closed_ = true;
  awaited_.clear();
  placed_.clear();
  CountSumming();
  outbox_.Detach();
  outbox_.Clear(why);
  Lose(why);
}

void ServerLink::Close(const absl::Status& why) {
  if (leaving_) return;
  leaving_ = true;
  outbox_.Detach();
  outbox_.Clear(why);
  if (link_ != nullptr) {
    link_->Close(why);
  } else if (!connecting_) {
    closed_ = true;
  }
}

void ServerLink::Reset(const absl::Status& why) {
  if (link_ != nullptr) link_->Close(why);
}

void ServerLink::Lose(const absl::Status& why) {
  if (leaving_) return;
  path_failed_ = rdma::IsPathFailure(why);
  const absl::Status named(why.code(), absl::StrFormat("%s: %s", where_, Message(why)));
  events_->OnLinkLost(this, WithExitCode(named, ExitCodeOf(why)));
}

}  // namespace addend
