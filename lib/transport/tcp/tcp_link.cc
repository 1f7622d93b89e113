// The life of a link over TCP:
//
//  1. epoll events only make a direction wait for its turn (OnReady); Read() and Write() then
//     run from FairTurns, each up to a cost, so that a fast link cannot occupy the thread.
//  2. A Done means that the kernel, or the encryption buffer, has a copy of the payload.
//  3. Fail() stops all I/O at once, but the end is announced at the end of the loop's turn
//     (Finish): the link may be in the middle of a callback of its owner.

#include "lib/transport/tcp/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/trace/clock.h"
#include "lib/transport/link_status.h"
#include "lib/transport/tcp/socket.h"
#include "lib/transport/tcp/vectors.h"

namespace addend::tcp {
namespace {

// Edge-triggered: an event when bytes arrive, and no further event while the link waits for its
// turn.
constexpr uint32_t kForReading = EPOLLIN | EPOLLRDHUP | EPOLLET;
constexpr size_t kReasonBytesMax = 4096;
// Bytes encrypted before any of them is written.
constexpr size_t kSealedAtOnce = 512 << 10;

// The `detail` of a GOAWAY: the status code in the low byte, the exit code above it.
uint32_t GoawayDetail(const absl::Status& why) {
  return static_cast<uint32_t>(why.raw_code()) | static_cast<uint32_t>(ExitCodeOf(why)) << 8;
}

absl::Status FromGoaway(uint32_t detail, std::string_view reason) {
  const auto code = static_cast<absl::StatusCode>(detail & 0xff);
  if (code == absl::StatusCode::kOk)
    return absl::CancelledError("the peer closed the link on purpose");
  const absl::Status status(code, absl::string_view(reason.data(), reason.size()));
  return WithExitStatus(status, static_cast<int>(detail >> 8 & 0xff));
}

}  // namespace

TcpLink::TcpLink(Shared* shared, UniqueFd fd, FairTurns::GroupId group,
                 absl::AnyInvocable<void(TcpLink*)> gone)
    : shared_(shared),
      fd_(std::move(fd)),
      peer_(PeerName(fd_.get())),
      gone_(std::move(gone)),
      incoming_(fd_.get(), peer_, this) {
  Share(group);
}

TcpLink::~TcpLink() {
  shared_->turns.Leave(&reader_);
  shared_->turns.Leave(&writer_);
  if (fd_.valid()) shared_->loop->Unwatch(fd_.get());
}

void TcpLink::Share(uint64_t group) {
  shared_->turns.Join(&reader_, group);
  shared_->turns.Join(&writer_, group);
}

void TcpLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) return Fail(absl::CancelledError("refused"));
  const absl::Status watched = shared_->loop->Watch(fd_.get(), kForReading, this);
  if (!watched.ok()) Fail(watched);
}

void TcpLink::Abandon(absl::Status why) {
  closing_ = true;
  why_ = std::move(why);
  gone_ = nullptr;
  Finish();
}

void TcpLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader signed_header = header;
  incoming_.version()->Sign(&signed_header);
  outgoing_.Push(signed_header, payload, std::move(done));
  if (closing_) return;  // Finish() runs the Done with the reason
  if (outgoing_.size() > shared_->traits.in_flight_max) {
    return Fail(absl::ResourceExhaustedError(absl::StrFormat(
        "%s is not reading: %d frames are queued for it", peer_, outgoing_.size())));
  }
  if (!want_write_) shared_->turns.Wait(&writer_);
}

void TcpLink::Close(absl::Status why) {
  if (closing_) return;
  SayGoodbye(why);
  Fail(std::move(why));
}

absl::Duration TcpLink::sending_time() const { return BusyTime(fd_.get()); }

void TcpLink::LimitInFlight(size_t bytes) {
  if (bytes > kUnacknowledgedMost && !limited_) return;  // the kernel chooses better
  limited_ = true;
  LimitUnacknowledged(fd_.get(), bytes);
}

absl::Status TcpLink::Encrypt(const LinkKeys& keys) {
  iovec vectors[FrameWriter::kVectors];
  while (!outgoing_.empty()) {  // plain text that has not left
    const int count = outgoing_.Gather(vectors);
    size_t bytes = 0;
    for (const iovec& part : std::span(vectors, static_cast<size_t>(count))) {
      const auto* const begin = static_cast<const std::byte*>(part.iov_base);
      sealed_.insert(sealed_.end(), begin, begin + part.iov_len);
      bytes += part.iov_len;
    }
    sealed_end_ = sealed_.size();
    outgoing_.Sent(bytes, &completed_);
  }
  sealer_ = std::make_unique<Sealer>(keys.send);
  incoming_.Decrypt(keys.receive);
  return absl::OkStatus();
}

// Returns the next encrypted bytes. Encrypts more when all former bytes have left.
int TcpLink::GatherSealed(iovec* vectors) {
  if (sealed_sent_ == sealed_end_) {
    sealed_sent_ = 0;
    iovec plain[FrameWriter::kVectors];
    int count = outgoing_.Gather(plain);
    const size_t bytes = Clip(plain, &count, kSealedAtOnce);
    sealed_.resize(std::max(sealed_.size(), Sealer::SealedBytes(bytes)));
    sealed_end_ = static_cast<size_t>(sealer_->Seal(plain, count, sealed_.data()) - sealed_.data());
    const size_t frames = outgoing_.Sent(bytes, &completed_);
    shared_->stats.frames_sent.fetch_add(frames, std::memory_order_relaxed);
  }
  vectors[0] = {sealed_.data() + sealed_sent_, sealed_end_ - sealed_sent_};
  return 1;
}

// Best effort: sends as much as the socket takes at once. If the frame does not get through, the
// peer sees the connection end.
void TcpLink::SayGoodbye(const absl::Status& why) {
  FrameHeader header;
  header.type = FrameType::kGoaway;
  header.detail = GoawayDetail(why);
  incoming_.version()->Sign(&header);
  goodbye_ = Message(why).substr(0, kReasonBytesMax);
  outgoing_.Push(header, std::as_bytes(std::span<const char>(goodbye_)), nullptr);
  Flush(std::numeric_limits<size_t>::max());
}

// Writes the frames of a turn with as few system calls as possible. Returns the cost.
size_t TcpLink::Flush(size_t most) {
  size_t cost = 0;
  bool taken = true;  // the kernel took the last bytes offered
  while (taken && cost < most && !NothingToSend()) {
    const int64_t began = TraceNow();
    iovec vectors[FrameWriter::kVectors];
    int count = sealer_ == nullptr ? outgoing_.Gather(vectors) : GatherSealed(vectors);
    Clip(vectors, &count, most - cost);
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    shared_->stats.sending_ns.fetch_add(static_cast<uint64_t>(TraceNow() - began),
                                        std::memory_order_relaxed);
    if (sent < 0) {
      if (errno == EINTR) continue;
      taken = errno != EAGAIN && errno != EWOULDBLOCK;
      if (!taken) break;
      Fail(absl::UnavailableError(
          absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno))));
      return cost;
    }
    const auto bytes = static_cast<size_t>(sent);
    size_t frames = 0;
    if (sealer_ == nullptr) {
      frames = outgoing_.Sent(bytes, &completed_);
    } else {
      sealed_sent_ += bytes;
    }
    shared_->stats.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
    shared_->stats.frames_sent.fetch_add(frames, std::memory_order_relaxed);
    cost += bytes + frames * FairTurns::kFrameCost;
  }
  if (taken == want_write_) {
    want_write_ = !taken;
    shared_->loop->Modify(fd_.get(), want_write_ ? kForReading | EPOLLOUT : kForReading);
  }
  return cost;
}

// Dones run after the system calls: a Done may send or close.
FairTurns::Waiter::Work TcpLink::Write(size_t most) {
  const size_t cost = Flush(most);
  if (closing_) return {cost, false};  // Finish() runs completed_
  std::vector<Done> completed;
  completed.swap(completed_);
  for (Done& done : completed) done(absl::OkStatus());
  return {cost, !closing_ && !want_write_ && !NothingToSend()};
}

// Starts no I/O: the direction waits for its turn, and edge-triggered events do not repeat.
void TcpLink::OnReady(uint32_t events) {
  if (closing_) return;
  if (events & EPOLLOUT) shared_->turns.Wait(&writer_);
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) ended_ = true;
  if (ended_ || (events & EPOLLIN)) shared_->turns.Wait(&reader_);
}

FairTurns::Waiter::Work TcpLink::Read(size_t most) {
  FrameReader::Progress progress;
  absl::Status status = incoming_.Read(most, &progress);
  shared_->stats.bytes_received.fetch_add(progress.bytes, std::memory_order_relaxed);
  shared_->stats.receiving_ns.fetch_add(static_cast<uint64_t>(progress.ns),
                                        std::memory_order_relaxed);
  if (!status.ok() && !closing_) {
    if (!absl::IsUnavailable(status)) SayGoodbye(status);
    Fail(std::move(status));
  }
  // The end of a connection causes no second event.
  const bool again = progress.more || (ended_ && progress.bytes > 0);
  return {progress.cost(), again && !closing_};
}

absl::StatusOr<MutableBytes> TcpLink::Place(const FrameHeader& header) {
  if (header.type != FrameType::kGoaway) return sink_->Place(header);
  if (header.payload_bytes > kReasonBytesMax) {
    return absl::InvalidArgumentError("a GOAWAY is too long");
  }
  reason_.resize(header.payload_bytes);
  return std::as_writable_bytes(std::span<char>(reason_));
}

absl::Status TcpLink::Take(const FrameHeader& header, MutableBytes payload) {
  shared_->stats.frames_received.fetch_add(1, std::memory_order_relaxed);
  ADDEND_RETURN_IF_ERROR(CheckChecksum(header, payload, peer_));
  if (header.type == FrameType::kGoaway) {
    Fail(FromGoaway(header.detail, reason_));
    return absl::OkStatus();
  }
  return sink_->OnFrame(header, Payload(payload));
}

// Stops I/O and schedules Finish(). The first reason counts.
void TcpLink::Fail(absl::Status why) {
  if (closing_) return;
  closing_ = true;
  BlamePeer(peer_, why, &shared_->stats, &shared_->blamed);
  why_ = std::move(why);
  shared_->loop->Unwatch(fd_.get());
  shared_->turns.Leave(&reader_);
  shared_->turns.Leave(&writer_);
  end_.Schedule();
}

// Ends the link. No member may be touched after gone_.
void TcpLink::Finish() {
  shared_->loop->Unwatch(fd_.get());
  fd_.Reset();
  for (Done& done : completed_) done(absl::OkStatus());
  completed_.clear();
  for (Done& done : outgoing_.TakeAll()) done(why_);
  if (sink_ != nullptr) sink_->OnClosed(why_);
  if (gone_) gone_(this);
}

}  // namespace addend::tcp
