// The handshake of a link, and the checks that every frame of a node passes.
#include "lib/summation/node_link.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

// A node that has this many frames to read sees by them that the server lives.
constexpr size_t kQueuedBeforeReply = 64;

}  // namespace

// HELLO and PROOF come once each, before all other frames.
absl::Status NodeLink::CheckExpected(const FrameHeader& header) const {
  if (header.type == FrameType::kHello) {
    if (!terms_.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError("a second HELLO on one link");
  }
  if (header.type == FrameType::kProof) {
    if (in_handshake_ && terms_.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError("a PROOF that was not asked for");
  }
  return CheckSender(header);
}

absl::Status NodeLink::CheckSender(const FrameHeader& header) const {
  if (!port_.is_member()) return doorkeeper_->RefuseUnproved(link_->peer());
  const auth::Claim& node = terms_->claim;
  if (header.job != node.job || header.generation != node.generation ||
      NodeId(header.sender) != node.node) {
    return absl::InvalidArgumentError(
        "a frame names another job, generation or node than its link's HELLO");
  }
  return absl::OkStatus();
}

absl::StatusOr<MutableBytes> NodeLink::Place(const FrameHeader& header) {
  ADDEND_RETURN_IF_ERROR(CheckExpected(header));
  if (header.type != FrameType::kHello && header.type != FrameType::kProof) {
    return job_->Place(&port_, header);
  }
  if (header.payload_bytes > handshake_room_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the payload of a %s is too long", Name(header.type)));
  }
  return MutableBytes(handshake_room_.data(), header.payload_bytes);
}

absl::Status NodeLink::OnFrame(const FrameHeader& header, Payload payload) {
  ADDEND_RETURN_IF_ERROR(CheckExpected(header));
  switch (header.type) {
    case FrameType::kHello:
      return OnHello(header, payload.bytes());
    case FrameType::kProof:
      return OnProof(header, payload.bytes());
    case FrameType::kPing:
      return OnPing(header);
    default:
      return job_->OnFrame(&port_, header, std::move(payload));
  }
}

void NodeLink::OnClosed(absl::Status why) {
  port_.Detach(why);
  if (port_.is_member()) job_->OnLeft(&port_, why);
  on_closed_(this);  // destroys this
}

void NodeLink::CheckPatience() {
  if (!in_handshake_) return;
  if (absl::Status late = doorkeeper_->CheckPatience(link_->peer(), since_); !late.ok()) {
    in_handshake_ = false;
    link_->Close(late);
  }
}

// Handles HELLO, an unauthenticated claim; answers with a challenge.
absl::Status NodeLink::OnHello(const FrameHeader& header, Bytes opening) {
  ADDEND_ASSIGN_OR_RETURN(terms_, doorkeeper_->TermsFor(link_->peer(), header, opening));
  version_ = header.version;
  FrameHeader challenge;
  challenge.type = FrameType::kChallenge;
  challenge.job = header.job;
  challenge.generation = header.generation;
  challenge.partition = header.partition;
  doorkeeper_->Sign(&challenge);
  link_->Send(challenge, terms_->server_nonce, nullptr);
  return absl::OkStatus();
}

// Handles PROOF, which authenticates the claim; connects the node to its job.
absl::Status NodeLink::OnProof(const FrameHeader& header, Bytes proof) {
  if (header.job != terms_->claim.job || header.generation != terms_->claim.generation ||
      NodeId(header.sender) != terms_->claim.node) {
    return absl::InvalidArgumentError("a PROOF for another job, generation or node than its HELLO");
  }
  ADDEND_ASSIGN_OR_RETURN(const auth::Secret token,
                          doorkeeper_->TokenOf(link_->peer(), *terms_, proof));
  ADDEND_ASSIGN_OR_RETURN(job_, doorkeeper_->Admit(&port_, *terms_));
  in_handshake_ = false;
  link_->Share(terms_->claim.job.value());
  return Welcome(token);
}

// The server's HELLO carries its own proof: the node authenticates the server too.
absl::Status NodeLink::Welcome(const auth::Secret& token) {
  FrameHeader reply;
  reply.type = FrameType::kHello;
  reply.flags = kFlagReply;
  reply.job = terms_->claim.job;
  reply.generation = terms_->claim.generation;
  reply.partition = PartitionId(terms_->shard);
  doorkeeper_->Sign(&reply);
  proof_ = auth::ProofOf(auth::Side::kServer, token, *terms_);
  link_->Send(reply, proof_, nullptr);
  if (terms_->encrypt) {
    ADDEND_RETURN_IF_ERROR(
        link_->Encrypt({.send = auth::KeyOf(auth::Side::kServer, token, *terms_),
                        .receive = auth::KeyOf(auth::Side::kNode, token, *terms_)}));
  }
  port_.LimitInFlight(job_->in_flight_bytes());
  port_.Attach(/*encodes=*/version_ >= kEncodingsSince);
  return absl::OkStatus();
}

absl::Status NodeLink::OnPing(const FrameHeader& header) {
  if (header.flags & kFlagReply || port_.queued() >= kQueuedBeforeReply) return absl::OkStatus();
  FrameHeader reply = header;
  reply.flags = kFlagReply;
  port_.Push(reply);
  return absl::OkStatus();
}

}  // namespace addend
