#include "lib/summation/node_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/summation/shard.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// For the small frames of a bundle.
constexpr size_t kLeastScratch = 64 << 10;

// What may wait for a node. A round begins when the node has the former one's result, so of a
// partition's results two wait at most, and a few more that a repetition has asked for; of other
// frames one of each kind.
constexpr int kUnsentResults = 8;
constexpr size_t kQueuedMost = 4096;
constexpr size_t kQueuedForEach = 16;  // partition of the job

// Sent when this server was the owner in a former time: the node sends it again when it has heard
// of the plan that the partition is under.
bool IsOutdated(const FrameHeader& header, const Partition& partition) {
  return header.plan_version < partition.ownership().version();
}

}  // namespace

absl::StatusOr<MutableBytes> NodeLink::Place(const FrameHeader& header) {
  if (header.type == FrameType::kHello || header.type == FrameType::kProof) {
    if (header.payload_bytes > handshake_room_.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the payload of a %s is too long", Name(header.type)));
    }
    return MutableBytes(handshake_room_.data(), header.payload_bytes);
  }
  if (header.type == FrameType::kAudit) return PlaceAudit(header);
  if (IsAboutLatest(header)) return PlaceLatest(header);
  if (header.type != FrameType::kContribution && header.type != FrameType::kResult) {
    return absl::UnimplementedError(absl::StrFormat(
        "this summation server does not take a %s frame with a payload", Name(header.type)));
  }
  ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<Partition> partition, Find(header));
  Placed& placed = placed_.emplace_back();
  placed.partition = std::move(partition);
  placed.began = TraceNow();
  if (placed.partition == nullptr) return MutableBytes();
  return RoomFor(header, &placed);
}

absl::StatusOr<MutableBytes> NodeLink::RoomFor(const FrameHeader& header, Placed* placed) {
  Partition& partition = *placed->partition;
  if (header.type == FrameType::kResult) {
    return header.round == partition.ownership().newest() ? partition.RoomForNewest()
                                                          : MutableBytes();
  }
  if (!partition.ownership().Sums() || IsOutdated(header, partition)) return MutableBytes();
  partition.Meet(header.round);
  switch (partition.collector().Classify(node_, header.round)) {
    case Collector::Standing::kItsTurn:
      if (const MutableBytes room = partition.DirectRoom(); !room.empty()) return room;
      return ScratchFor(header.payload_bytes, placed);
    case Collector::Standing::kEarly:
      placed->early = EarlyContribution::TakeBuffer(shard_->early_buffers(), header.payload_bytes,
                                                    job_->memory);
      return placed->early ? placed->early->room() : MutableBytes();
    default:
      return MutableBytes();
  }
}

// It cannot grow while payloads are on their way into it.
absl::StatusOr<MutableBytes> NodeLink::ScratchFor(size_t bytes, Placed* placed) {
  if (scratch_used_ == 0 && (scratch_ == nullptr || scratch_->memory().size() < bytes)) {
    ADDEND_ASSIGN_OR_RETURN(scratch_, Arena::Create(std::max(bytes, kLeastScratch)));
  }
  if (scratch_->memory().size() - scratch_used_ < bytes) {
    ADDEND_ASSIGN_OR_RETURN(placed->own, TakeSpare(bytes));
    return placed->own->memory().first(bytes);
  }
  const MutableBytes room = scratch_->memory().subspan(scratch_used_, bytes);
  scratch_used_ += bytes;
  return room;
}

absl::StatusOr<std::shared_ptr<Arena>> NodeLink::TakeSpare(size_t bytes) {
  const auto large_enough = std::find_if(spare_.begin(), spare_.end(), [bytes](const auto& arena) {
    return arena->memory().size() >= bytes;
  });
  if (large_enough == spare_.end()) return Arena::Create(bytes);
  std::shared_ptr<Arena> arena = std::move(*large_enough);
  spare_.erase(large_enough);
  return arena;
}

NodeLink::Placed NodeLink::TakePlaced(const FrameHeader& header) {
  if (traits_->by_reference || header.payload_bytes == 0) return {};
  ADDEND_CHECK(!placed_.empty(), "Place() comes before OnFrame()");
  Placed placed = std::move(placed_.front());
  placed_.pop_front();
  if (placed_.empty()) scratch_used_ = 0;
  return placed;
}

bool NodeLink::IsReceiving(const Partition& partition) const {
  return std::any_of(placed_.begin(), placed_.end(),
                     [&](const Placed& placed) { return placed.partition.get() == &partition; });
}

absl::Status NodeLink::OnFrame(const FrameHeader& header, Payload payload) {
  if (IsAboutLatest(header)) return OnLatestFrame(header, std::move(payload));
  switch (header.type) {
    case FrameType::kHello:
      return OnHello(header, payload.bytes());
    case FrameType::kProof:
      return OnProof(header, payload.bytes());
    case FrameType::kContribution:
      return OnContribution(header, std::move(payload));
    case FrameType::kRecover:
      return OnReport(header);
    case FrameType::kAck:
      return OnSync(header);
    case FrameType::kResult:
      return OnSupplied(header, std::move(payload));
    case FrameType::kAudit:
      return OnAudit(header, std::move(payload));
    case FrameType::kAuditDigest:
      ADDEND_RETURN_IF_ERROR(CheckSender(header));
      shard_->AuditDigest(*job_, header);
      return absl::OkStatus();
    case FrameType::kPing: {
      FrameHeader reply = header;
      reply.flags = kFlagReply;
      if (!(header.flags & kFlagReply)) link_->Send(reply, {}, nullptr);
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(absl::StrFormat(
          "this version of the summation server does not take %s frames", Name(header.type)));
  }
}

void NodeLink::OnClosed(absl::Status why) {
  outbox_.Detach();
  outbox_.Clear(why);
  shard_->OnLinkClosed(this, why);  // deletes this
}

void NodeLink::Push(const FrameHeader& header, Bytes payload, Done done) {
  outbox_.Push(header, payload, std::move(done));
  const size_t partitions = job_->partitions.size() + job_->latest.size();
  if (outbox_.queued() > kQueuedMost + kQueuedForEach * partitions) CloseUnread();
}

void NodeLink::PushResult(const FrameHeader& header, Bytes result, Done done) {
  const bool unread = ++unsent_[header.partition] > kUnsentResults && !traits_->by_reference;
  if (unread) CloseUnread();
  Push(header, result,
       [this, partition = header.partition, done = std::move(done)](absl::Status status) mutable {
         if (--unsent_[partition] == 0) unsent_.erase(partition);
         done(status);
       });
}

void NodeLink::CloseUnread() {
  link_->Close(absl::ResourceExhaustedError(absl::StrFormat(
      "node %d asks for more than it reads: %d frames wait for it", node_.value(), queued())));
}

// Says who it is. Nothing of it is believed so far.
absl::Status NodeLink::OnHello(const FrameHeader& header, Bytes opening) {
  if (terms_.has_value()) return absl::InvalidArgumentError("a second HELLO on one link");
  ADDEND_ASSIGN_OR_RETURN(terms_, shard_->TermsFor(link_->peer(), header, opening));
  FrameHeader challenge;
  challenge.type = FrameType::kChallenge;
  challenge.job = header.job;
  challenge.generation = header.generation;
  challenge.partition = header.partition;
  shard_->Sign(&challenge);
  link_->Send(challenge, terms_->server_nonce, nullptr);
  return absl::OkStatus();
}

absl::Status NodeLink::OnProof(const FrameHeader& header, Bytes proof) {
  if (job_ != nullptr || !terms_.has_value()) {
    return absl::InvalidArgumentError("a PROOF that was not asked for");
  }
  if (header.job != terms_->claim.job || header.generation != terms_->claim.generation ||
      NodeId(header.sender) != terms_->claim.node) {
    return absl::InvalidArgumentError("a PROOF for another job, generation or node than its HELLO");
  }
  ADDEND_ASSIGN_OR_RETURN(const auth::Secret token, shard_->TokenOf(link_->peer(), *terms_, proof));
  ADDEND_ASSIGN_OR_RETURN(job_, shard_->Admit(this, terms_->claim));
  is_stranger_ = false;
  link_->Share(terms_->claim.job.value());
  node_ = terms_->claim.node;
  generation_ = terms_->claim.generation;
  return Welcome(token);
}

// The node, too, learns whom it talks to.
absl::Status NodeLink::Welcome(const auth::Secret& token) {
  FrameHeader reply;
  reply.type = FrameType::kHello;
  reply.flags = kFlagReply;
  reply.job = terms_->claim.job;
  reply.generation = generation_;
  reply.partition = PartitionId(terms_->shard);
  shard_->Sign(&reply);
  proof_ = auth::ProofOf(auth::Side::kServer, token, *terms_);
  link_->Send(reply, proof_, nullptr);
  if (terms_->encrypt) {
    ADDEND_RETURN_IF_ERROR(
        link_->Encrypt({.send = auth::KeyOf(auth::Side::kServer, token, *terms_),
                        .receive = auth::KeyOf(auth::Side::kNode, token, *terms_)}));
  }
  link_->LimitInFlight(job_->in_flight_bytes);
  outbox_.Attach(link_, *traits_);
  return absl::OkStatus();
}

absl::Status NodeLink::CheckSender(const FrameHeader& header) const {
  if (job_ == nullptr) {
    return shard_->Refuse(
        link_->peer(), Refusal::kNoToken,
        absl::UnauthenticatedError("a link begins with a HELLO, and its answer with a PROOF"));
  }
  if (header.job != job_->spec.id || header.generation != generation_ ||
      NodeId(header.sender) != node_) {
    return absl::InvalidArgumentError(
        "a frame names another job, generation or node than its link's HELLO");
  }
  return absl::OkStatus();
}

absl::Status NodeLink::CheckFit(const FrameHeader& header, const Partition::Spec& spec) {
  if (header.type != FrameType::kContribution && header.type != FrameType::kResult) {
    return absl::OkStatus();
  }
  const size_t expected = header.flags & kFlagEmpty ? 0 : spec.elements * SizeOf(spec.dtype);
  if (header.dtype == spec.dtype && header.op == spec.op && header.payload_bytes == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "a %s of %d bytes (%s, %s) does not fit partition %d of '%s' (%d bytes, %s, %s)",
      Name(header.type), header.payload_bytes, Name(header.dtype), Name(header.op),
      header.partition.index(), spec.name, expected, Name(spec.dtype), Name(spec.op)));
}

absl::StatusOr<std::shared_ptr<Partition>> NodeLink::Find(const FrameHeader& header) const {
  ADDEND_RETURN_IF_ERROR(CheckSender(header));
  return FindAmong(job_->partitions, job_->latest, header);
}

absl::StatusOr<MutableBytes> NodeLink::PlaceAudit(const FrameHeader& header) {
  ADDEND_RETURN_IF_ERROR(CheckSender(header));
  Placed& placed = placed_.emplace_back();
  if (header.payload_bytes % SizeOf(header.dtype) != 0) return MutableBytes();
  placed.early =
      EarlyContribution::TakeBuffer(shard_->early_buffers(), header.payload_bytes, job_->memory);
  return placed.early ? placed.early->room() : MutableBytes();
}

absl::Status NodeLink::OnAudit(const FrameHeader& header, Payload payload) {
  ADDEND_RETURN_IF_ERROR(CheckSender(header));
  Placed placed = TakePlaced(header);
  const bool empty = header.flags & kFlagEmpty;
  if (empty || payload.by_reference()) {
    placed.early = std::make_unique<EarlyContribution>(std::move(payload), empty);
  }
  shard_->Audit(*job_, header, std::move(placed.early));
  return absl::OkStatus();
}

absl::Status NodeLink::OnContribution(const FrameHeader& header, Payload payload) {
  Placed placed = TakePlaced(header);
  std::shared_ptr<Partition>& partition = placed.partition;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, Find(header));
  }
  // What comes before the reports are complete, or after the partition has gone, is sent again.
  if (partition == nullptr || IsOutdated(header, *partition) ||
      partition->ownership().state() == Ownership::State::kRecovering) {
    return absl::OkStatus();
  }
  if (partition->ownership().state() == Ownership::State::kClosed) {
    if (partition->Holds(header.round)) {
      shard_->SendResult(this, *partition);
    } else if (partition->aborted()) {
      shard_->SendAborted(this, *partition);
    } else {
      shard_->SendMoved(this, *partition);
    }
    return absl::OkStatus();
  }
  const absl::Status taken = TakeContribution(partition.get(), header, std::move(payload), &placed);
  if (placed.own != nullptr) spare_.push_back(std::move(placed.own));
  shard_->CloseIfDue(job_, partition.get());
  return taken;
}

absl::Status NodeLink::TakeContribution(Partition* partition, const FrameHeader& header,
                                        Payload payload, Placed* placed) {
  partition->Meet(header.round);
  if (partition->aborted() && header.round == partition->collector().round()) {
    shard_->SendAborted(this, *partition);
    return absl::OkStatus();
  }
  partition->Touch(absl::Now(), header.priority);
  const Collector::Standing standing = partition->collector().Classify(node_, header.round);
  if (standing == Collector::Standing::kItsTurn || standing == Collector::Standing::kEarly) {
    shard_->NoteArrival(*this, partition, header, placed->began);
  }
  switch (standing) {
    case Collector::Standing::kItsTurn: {
      // Its turn came while it was received, but there had been no room for it.
      if (payload.bytes().size() != header.payload_bytes) {
        partition->collector().Drop(node_);
        return shard_->Advance(job_, partition);
      }
      return OnItsTurn(partition, header, std::move(payload));
    }
    case Collector::Standing::kEarly:
      return OnEarly(partition, header, std::move(payload), std::move(placed->early));
    case Collector::Standing::kSealed:
      // Else it is on its way from a node that holds it.
      if (partition->Holds(header.round)) shard_->SendResult(this, *partition);
      return absl::OkStatus();
    case Collector::Standing::kRepeated:
    case Collector::Standing::kOld:
      return absl::OkStatus();
    case Collector::Standing::kAhead:
      break;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "node %d pushed round %d of '%s' before round %d was sealed", node_.value(),
      header.round.value(), partition->spec().name, partition->collector().round().value()));
}

absl::Status NodeLink::OnReport(const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(const auto partition, Find(header));
  // Of another plan: the scheduler tells both of us about the newer one.
  if (partition == nullptr || header.plan_version != partition->ownership().version()) {
    return absl::OkStatus();
  }
  if (partition->ownership().state() != Ownership::State::kRecovering) {  // repeated
    shard_->SendRecovered(this, *partition);
    if (partition->Holds(Next(header.round))) shard_->SendResult(this, *partition);
    return absl::OkStatus();
  }
  if (partition->OnReport(node_, header.round)) shard_->EndRecovery(job_, partition.get());
  return absl::OkStatus();
}

absl::Status NodeLink::OnSync(const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(const auto partition, Find(header));
  if (partition == nullptr) return absl::OkStatus();
  const Ownership& ownership = partition->ownership();
  if (ownership.state() == Ownership::State::kClosed &&
      header.plan_version < ownership.next_version()) {
    if (partition->Holds(Next(header.round))) shard_->SendResult(this, *partition);
    shard_->SendMoved(this, *partition);
  }
  if (ownership.Sums() && ownership.AnyLacks() && !ownership.Lacks(node_)) {
    shard_->AskForNewest(this, *partition);
  }
  return absl::OkStatus();
}

absl::Status NodeLink::OnSupplied(const FrameHeader& header, Payload payload) {
  std::shared_ptr<Partition> partition = TakePlaced(header).partition;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, Find(header));
  }
  if (partition == nullptr || !partition->ownership().AnyLacks() ||
      header.round != partition->ownership().newest() ||
      payload.bytes().size() != partition->payload_bytes()) {
    return absl::OkStatus();
  }
  partition->TakeNewest(payload.bytes());
  shard_->Relay(job_, partition.get());
  return absl::OkStatus();
}

absl::Status NodeLink::OnItsTurn(Partition* partition, const FrameHeader& header, Payload payload) {
  const bool empty = header.flags & kFlagEmpty;
  return shard_->Take(job_, partition, std::move(payload), empty);
}

absl::Status NodeLink::OnEarly(Partition* partition, const FrameHeader& header, Payload payload,
                               std::unique_ptr<EarlyContribution> early) {
  const bool empty = header.flags & kFlagEmpty;
  if (early != nullptr) {
    partition->KeepEarly(node_, std::move(early));
  } else if (empty || payload.by_reference()) {
    partition->KeepEarly(node_, std::make_unique<EarlyContribution>(std::move(payload), empty));
  } else {
    partition->collector().Drop(node_);
  }
  return absl::OkStatus();
}

}  // namespace addend
