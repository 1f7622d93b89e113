// A link over RDMA. The steps of a frame with a large payload:
//
//  sender: announces the frame in a message, by credit (SendSome)
//  receiver: asks its sink for memory, registers it and answers with address and key (Grant)
//  sender: writes the payload to that address, with the frame's number as the immediate (OnGrant)
//  receiver: learns of the end of the write from its completion, and takes the frame (OnReceived)
//
// Small payloads travel in the message. Messages wait for the end of the loop's turn (Turn), so
// that all credits and grants of a turn leave together. Errors of the path, not of the peer, are
// marked as PathFailure: the caller may fall back to TCP.

#include "lib/transport/rdma/rdma_link.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/link_status.h"

namespace addend::rdma {
namespace {

constexpr int kSends = kFrameCredits + kControlMessages;
constexpr size_t kBufferBytes = (kMessageBytesMax + 63) / 64 * 64;
constexpr size_t kMaxLanes = 256;

// The index of a receive: its lane and its buffer.
uint32_t ReceiveIndex(size_t lane, size_t buffer) {
  return static_cast<uint32_t>(lane << 16 | buffer);
}
size_t LaneOf(const WorkId& receive) { return receive.index >> 16; }
int BufferOf(const WorkId& receive) { return static_cast<int>(receive.index & 0xffff); }

}  // namespace

RdmaLink::RdmaLink(Shared* shared, std::string peer, std::unique_ptr<Signals> signals,
                   FairTurns::GroupId group, uint64_t domain, DecideFn decide, GoneFn gone)
    : shared_(shared),
      owner_(shared->table.Add(this)),
      peer_(std::move(peer)),
      domain_(domain),
      signals_(std::move(signals)),
      decide_(std::move(decide)),
      gone_(std::move(gone)) {
  Share(group);
}

RdmaLink::~RdmaLink() {
  shared_->turns.Leave(&taker_);
  shared_->table.Remove(owner_);
}

// Creates a queue pair with room for all messages and writes that flow control allows.
absl::StatusOr<LaneAddress> RdmaLink::AddLane(CompletionQueue* completions) {
  ADDEND_ASSIGN_OR_RETURN(auto domain, completions->device()->DomainOf(domain_));
  ADDEND_ASSIGN_OR_RETURN(auto lane, QueuePair::Create(completions, std::move(domain),
                                                       kSends + kAnnouncedMax, kReceives));
  lanes_.push_back(std::move(lane));
  return lanes_.back()->address();
}

// Posts all receives before the queue pairs are ready to receive: receiver-not-ready retries are
// off.
absl::Status RdmaLink::Connect(const std::vector<std::optional<LaneAddress>>& peers) {
  std::vector<std::unique_ptr<QueuePair>> kept;
  std::vector<LaneAddress> ends;
  for (size_t i = 0; i < lanes_.size() && i < peers.size(); ++i) {
    if (!peers[i].has_value()) continue;
    kept.push_back(std::move(lanes_[i]));
    ends.push_back(*peers[i]);
  }
  lanes_ = std::move(kept);
  if (lanes_.empty() || lanes_.size() > kMaxLanes) {
    return absl::UnavailableError("no NIC of this end reaches a NIC of the peer");
  }
  ADDEND_RETURN_IF_ERROR(MakeBuffers());
  for (size_t lane = 1; lane < lanes_.size(); ++lane) {
    for (int i = 0; i < kAnnouncedMax; ++i) {
      ADDEND_RETURN_IF_ERROR(lanes_[lane]->PostReceive(
          {owner_, WorkId::Kind::kReceive, ReceiveIndex(lane, 0)}, {}, 0));
    }
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    ADDEND_RETURN_IF_ERROR(lanes_[lane]->Connect(ends[lane]));
  }
  return absl::OkStatus();
}

absl::Status RdmaLink::MakeBuffers() {
  ADDEND_ASSIGN_OR_RETURN(buffers_, Arena::Create((kReceives + kSends) * kBufferBytes));
  ADDEND_ASSIGN_OR_RETURN(const Registered memory,
                          lanes_.front()->domain()->Register(buffers_->memory(), Access::kReceive));
  buffers_key_ = memory.local_key;
  for (int buffer = 0; buffer < kReceives; ++buffer) {
    ADDEND_RETURN_IF_ERROR(PostMessageReceive(buffer));
  }
  for (int buffer = kReceives; buffer < kReceives + kSends; ++buffer) free_sends_.push_back(buffer);
  return absl::OkStatus();
}

absl::Status RdmaLink::PostMessageReceive(int buffer) {
  return lanes_.front()->PostReceive(
      {owner_, WorkId::Kind::kReceive, ReceiveIndex(0, static_cast<size_t>(buffer))},
      buffers_->memory().subspan(static_cast<size_t>(buffer) * kBufferBytes, kBufferBytes),
      buffers_key_);
}

absl::Status RdmaLink::Greet() {
  greeted_ = true;
  return SendMessage({.kind = MessageKind::kCredit}, nullptr, {});
}

void RdmaLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) Fail(absl::CancelledError("refused"), /*tell=*/true);
}

void RdmaLink::Abandon(absl::Status why) {
  gone_ = nullptr;
  if (decide_) decide_ = [](const absl::Status&) {};
  Fail(std::move(why), /*tell=*/false);
  Finish();
}

void RdmaLink::OnDeviceFailure(const Device* device, uint32_t queue_pair, const absl::Status& why) {
  const bool mine = std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return lane->device().get() == device && (queue_pair == 0 || lane->number() == queue_pair);
  });
  if (mine) FailPath(why);
}

// Frames that the peer sent before its goodbye still count: they are handed over first.
void RdmaLink::OnSignal(absl::StatusOr<Signal> signal) {
  if (closing_ || (signal.ok() && !signal->goodbye.has_value())) return;
  if (signal.ok()) {
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->completions()->Poll();
    if (absl::Status status = incoming_.Advance(); !status.ok()) {
      return Fail(std::move(status), /*tell=*/true);
    }
    const bool on_purpose = signal->goodbye->ok();
    return Fail(
        on_purpose ? absl::CancelledError("the peer closed the link on purpose") : *signal->goodbye,
        /*tell=*/false);
  }
  Fail(absl::UnavailableError(
           absl::StrFormat("the connection to %s broke: %s", peer_, Message(signal.status()))),
       /*tell=*/false);
}

void RdmaLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader signed_header = header;
  version_.Sign(&signed_header);
  outgoing_.Push(signed_header, payload, std::move(done));
  if (closing_) return;  // Finish() runs the Done with the reason
  if (outgoing_.size() > shared_->in_flight_max) {
    return Fail(absl::ResourceExhaustedError(absl::StrFormat(
                    "%s is not reading: %d frames are queued for it", peer_, outgoing_.size())),
                /*tell=*/true);
  }
  turn_.Schedule();
}

void RdmaLink::Close(absl::Status why) { Fail(std::move(why), /*tell=*/true); }

// Counts the time in which payloads were under way, for sending_time().
void RdmaLink::CountBusy() {
  const bool busy = !closing_ && outgoing_.busy();
  if (busy == (busy_since_ != absl::InfiniteFuture())) return;
  const absl::Time now = SteadyNow();
  if (!busy) busy_ += now - busy_since_;
  busy_since_ = busy ? now : absl::InfiniteFuture();
}

absl::Duration RdmaLink::sending_time() const {
  const absl::Time now = SteadyNow();
  return busy_ + (now - std::min(now, busy_since_));
}

void RdmaLink::OnCompletion(const WorkId& id, const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    return FailPath(absl::UnavailableError(
        absl::StrFormat("RDMA to %s: %s", peer_, ibv_wc_status_str(completion.status))));
  }
  absl::Status status;
  switch (id.kind) {
    case WorkId::Kind::kReceive:
      status = OnReceived(id, completion);
      break;
    case WorkId::Kind::kMessage:
      free_sends_.push_back(static_cast<int>(id.index));
      break;
    case WorkId::Kind::kWrite:
      status = outgoing_.Written(outgoing_.NumberOf(id.index));
      CountBusy();
      break;
  }
  if (!status.ok()) return Fail(std::move(status), /*tell=*/true);
  turn_.Schedule();
}

absl::Status RdmaLink::OnReceived(const WorkId& id, const ibv_wc& completion) {
  shared_->stats.bytes_received.fetch_add(completion.byte_len, std::memory_order_relaxed);
  if (completion.opcode == IBV_WC_RECV) return OnMessage(BufferOf(id), completion.byte_len);
  const size_t lane = LaneOf(id);
  if (lane == 0) {
    ADDEND_RETURN_IF_ERROR(PostMessageReceive(BufferOf(id)));
  } else {
    ADDEND_RETURN_IF_ERROR(lanes_[lane]->PostReceive(id, {}, 0));
  }
  shared_->turns.Wait(&taker_);
  return incoming_.Written(ntohl(completion.imm_data), completion.byte_len);
}

// Sends the grants at once: the peer waits for them.
FairTurns::Waiter::Work RdmaLink::TakeSome(size_t most) {
  FairTurns::Waiter::Work work;
  absl::Status status = incoming_.Advance(most, &work);
  if (!status.ok()) {
    Fail(std::move(status), /*tell=*/true);
  } else if (!closing_) {
    if (status = SendSome(); !status.ok()) FailPath(status);
  }
  work.again = work.again && !closing_;
  return work;
}

// Handles a message. The first message decides the link: only now both ends can receive. A buffer
// is posted again when its content has been used.
absl::Status RdmaLink::OnMessage(int buffer, size_t bytes) {
  const Bytes received =
      buffers_->memory().subspan(static_cast<size_t>(buffer) * kBufferBytes, bytes);
  ADDEND_ASSIGN_OR_RETURN(const DecodedMessage message, DecodeMessage(received));
  if (HasHeader(message.head.kind)) ADDEND_RETURN_IF_ERROR(version_.Check(message.header));
  ADDEND_RETURN_IF_ERROR(outgoing_.AddCredits(message.head.credits));
  if (decide_) {
    if (!greeted_) ADDEND_RETURN_IF_ERROR(Greet());
    std::exchange(decide_, nullptr)(absl::OkStatus());
    if (closing_) return absl::OkStatus();
  }
  switch (message.head.kind) {
    case MessageKind::kFrame:
      incoming_.Add(message.header, message.payload, buffer);
      shared_->turns.Wait(&taker_);
      return absl::OkStatus();
    case MessageKind::kAnnounce:
      ADDEND_RETURN_IF_ERROR(incoming_.Announce(message.header));
      shared_->turns.Wait(&taker_);
      return FreeBuffer(buffer);
    case MessageKind::kGrant:
      ADDEND_RETURN_IF_ERROR(PostMessageReceive(buffer));
      return OnGrant(message.head);
    case MessageKind::kDrop:
      ADDEND_RETURN_IF_ERROR(PostMessageReceive(buffer));
      return outgoing_.Dropped(message.head.number);
    case MessageKind::kCredit:
      break;
  }
  return PostMessageReceive(buffer);
}

// Writes an announced payload to the memory that the peer has granted.
absl::Status RdmaLink::OnGrant(const MessageHead& head) {
  ADDEND_ASSIGN_OR_RETURN(OutgoingFrames::Frame* const frame, outgoing_.Granted(head.number));
  if (head.lane >= lanes_.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("a grant for queue pair %d", head.lane));
  }
  QueuePair* const lane = lanes_[head.lane].get();
  if (frame->payload.size() > lane->device()->largest_write()) {
    return PathFailure(absl::OutOfRangeError(absl::StrFormat(
        "a payload of %d bytes is more than %s writes at once (%d): give the agents a smaller "
        "--partition-bytes",
        frame->payload.size(), lane->device()->name(), lane->device()->largest_write())));
  }
  auto memory = lane->domain()->Register(frame->payload, Access::kSend);
  if (!memory.ok()) return PathFailure(memory.status());
  frame->memory = *std::move(memory);
  shared_->stats.bytes_sent.fetch_add(frame->payload.size(), std::memory_order_relaxed);
  return lane->PostWrite({owner_, WorkId::Kind::kWrite, head.number & WorkId::kIndexMax},
                         frame->payload, frame->memory.local_key,
                         {head.address, head.key, head.number});
}

// Queues a grant, or a refusal if the sink gave no memory. Lanes take turns.
absl::Status RdmaLink::Grant(uint32_t number, MutableBytes room, Registered* memory) {
  MessageHead head{.kind = MessageKind::kDrop, .number = number};
  if (!room.empty()) {
    head.kind = MessageKind::kGrant;
    head.lane = static_cast<uint8_t>(next_lane_++ % lanes_.size());
    auto registered = lanes_[head.lane]->domain()->Register(room, Access::kPeerWrites);
    if (!registered.ok()) return PathFailure(registered.status());
    *memory = *std::move(registered);
    head.address = reinterpret_cast<uint64_t>(room.data());
    head.key = memory->remote_key;
  }
  control_.push_back(head);
  turn_.Schedule();
  return absl::OkStatus();
}

absl::Status RdmaLink::FreeBuffer(int buffer) {
  ++owed_credits_;
  return PostMessageReceive(buffer);
}

absl::StatusOr<MutableBytes> RdmaLink::Place(const FrameHeader& header) {
  return sink_->Place(header);
}

absl::Status RdmaLink::Take(const FrameHeader& header, Bytes payload) {
  shared_->stats.frames_received.fetch_add(1, std::memory_order_relaxed);
  ADDEND_RETURN_IF_ERROR(CheckChecksum(header, payload, peer_));
  return sink_->OnFrame(header, Payload(payload));
}

// Sends, then runs Dones, then ends the link if it is closing: a Done may close the link.
void RdmaLink::Turn() {
  if (!closing_ && !lanes_.empty()) {
    if (absl::Status status = SendSome(); !status.ok()) FailPath(status);
  }
  CountBusy();
  std::vector<Done> done;
  outgoing_.CollectDone(&done);
  for (Done& one : done) one(closing_ ? why_ : absl::OkStatus());
  if (closing_) Finish();
}

// Grants and drops go first and need no credit: the peer waits for them, and the number under way
// is bounded by its announcements.
absl::Status RdmaLink::SendSome() {
  while (!control_.empty() && !free_sends_.empty()) {
    ADDEND_RETURN_IF_ERROR(SendMessage(control_.front(), nullptr, {}));
    control_.pop_front();
  }
  while (!free_sends_.empty()) {
    const OutgoingFrames::Frame* const frame = outgoing_.Next();
    if (frame == nullptr) break;
    MessageHead head{.kind = MessageKind::kAnnounce};
    if (frame->is_inline()) head.kind = MessageKind::kFrame;
    const Bytes payload = frame->is_inline() ? frame->payload : Bytes();
    shared_->stats.frames_sent.fetch_add(1, std::memory_order_relaxed);
    ADDEND_RETURN_IF_ERROR(SendMessage(head, &frame->header, payload));
  }
  // Credit is returned by the half, so there are never more than two such messages on their way.
  if (owed_credits_ < kFrameCredits / 2 || free_sends_.empty()) return absl::OkStatus();
  return SendMessage({.kind = MessageKind::kCredit}, nullptr, {});
}

absl::Status RdmaLink::SendMessage(MessageHead head, const FrameHeader* header, Bytes payload) {
  const int buffer = free_sends_.back();
  free_sends_.pop_back();
  head.credits = std::exchange(owed_credits_, 0);
  const MutableBytes room =
      buffers_->memory().subspan(static_cast<size_t>(buffer) * kBufferBytes, kBufferBytes);
  const size_t bytes = EncodeMessage(head, header, payload, room.data());
  shared_->stats.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  return lanes_.front()->PostSend({owner_, WorkId::Kind::kMessage, static_cast<uint32_t>(buffer)},
                                  room.first(bytes), buffers_key_);
}

// After this the queue pairs are gone: the peer writes nothing more into this process's memory, and
// lent payloads are not read any more.
void RdmaLink::Fail(absl::Status why, bool tell) {
  if (closing_) return;
  closing_ = true;
  if (tell) BlamePeer(peer_, why, &shared_->stats, &shared_->blamed);
  shared_->table.Remove(owner_);
  shared_->turns.Leave(&taker_);
  lanes_.clear();
  if (tell && signals_ != nullptr) signals_->Say({.ends = std::nullopt, .goodbye = why});
  signals_.reset();
  why_ = std::move(why);
  turn_.Schedule();
}

// Ends the link. No member may be touched after gone_.
void RdmaLink::Finish() {
  CountBusy();
  for (Done& done : outgoing_.TakeAll()) done(why_);
  if (decide_) std::exchange(decide_, nullptr)(why_);
  if (sink_ != nullptr) sink_->OnClosed(why_);
  if (gone_) gone_(this);
}

}  // namespace addend::rdma
