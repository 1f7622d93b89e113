#include "lib/transport/socket_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/passed_files.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/trace/clock.h"
#include "lib/transport/link_status.h"
#include "lib/transport/vectors.h"

namespace addend {
namespace {

// Edge-triggered: an event when bytes arrive, and no further event while the link waits for its
// turn.
constexpr uint32_t kForReading = EPOLLIN | EPOLLRDHUP | EPOLLET;

void Run(std::vector<Done> dones, const absl::Status& status) {
  for (Done& done : dones) {
    if (done) done(status);
  }
}

}  // namespace

SocketLink::SocketLink(Shared* shared, UniqueFd fd, std::string peer, FairTurns::GroupId group,
                       GoneFn gone)
    : shared_(shared), fd_(std::move(fd)), peer_(std::move(peer)), gone_(std::move(gone)) {
  shared_->turns.Join(&reader_, group);
  shared_->turns.Join(&writer_, group);
}

SocketLink::~SocketLink() {
  shared_->turns.Leave(&reader_);
  shared_->turns.Leave(&writer_);
  if (fd_.valid()) shared_->loop->Unwatch(fd_.get());
}

void SocketLink::Share(uint64_t group) {
  shared_->turns.Join(&reader_, group);
  shared_->turns.Join(&writer_, group);
}

void SocketLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) return Fail(absl::CancelledError("refused"));
  const absl::Status watched = shared_->loop->Watch(fd_.get(), kForReading, this);
  if (!watched.ok()) return Fail(watched);
  if (!NothingToSend()) WaitToWrite();
}

void SocketLink::Abandon(absl::Status why) {
  OnClosing();
  closing_ = true;
  why_ = std::move(why);
  gone_ = nullptr;
  Finish();
}

void SocketLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  Queue(header, payload, std::move(done));
  if (closing_) return;  // Finish() runs the Done with the reason
  if (queued() > shared_->traits.in_flight_max) {
    return Fail(absl::ResourceExhaustedError(
        absl::StrFormat("%s is not reading: %d frames are queued for it", peer_, queued())));
  }
  WaitToWrite();
}

void SocketLink::WaitToWrite() {
  if (!want_write_) shared_->turns.Wait(&writer_);
}

void SocketLink::Close(absl::Status why) {
  if (closing_) return;
  SayGoodbye(why);
  Fail(std::move(why));
}

// Best effort: sends as much as the socket takes at once. If the frame does not get through, the
// peer sees the connection end.
void SocketLink::SayGoodbye(const absl::Status& why) {
  FrameHeader header;
  header.type = FrameType::kGoaway;
  header.detail = GoawayDetail(why);
  goodbye_ = Message(why).substr(0, kGoawayBytesMax);
  Queue(header, std::as_bytes(std::span<const char>(goodbye_)), nullptr);
  Flush(std::numeric_limits<size_t>::max());
}

// Writes the frames of a turn with as few system calls as possible. Returns the cost.
size_t SocketLink::Flush(size_t most) {
  size_t cost = 0;
  bool taken = true;  // the kernel took the last bytes offered
  while (taken && cost < most && !NothingToSend()) {
    const int64_t began = TraceNow();
    iovec vectors[kVectors];
    int file = -1;
    int count = Gather(vectors, &file);
    Clip(vectors, &count, most - cost);
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<size_t>(count);
    PassedFiles<1> files;
    if (file >= 0) files.Send({&file, 1}, &message);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    NoteSending(TraceNow() - began);
    if (sent < 0) {
      if (errno == EINTR) continue;
      taken = errno != EAGAIN && errno != EWOULDBLOCK;
      if (!taken) break;
      Fail(absl::UnavailableError(
          absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno))));
      return cost;
    }
    const auto bytes = static_cast<size_t>(sent);
    const size_t frames = OnSent(bytes);
    shared_->stats.frames_sent.fetch_add(frames, std::memory_order_relaxed);
    cost += bytes + frames * FairTurns::kFrameCost;
  }
  if (taken == want_write_) {
    want_write_ = !taken;
    shared_->loop->Modify(fd_.get(), want_write_ ? kForReading | EPOLLOUT : kForReading);
  }
  return cost;
}

FairTurns::Waiter::Work SocketLink::Write(size_t most) {
  const size_t cost = Flush(most);
  if (!closing_) RunDue();
  return {cost, !closing_ && !want_write_ && !NothingToSend()};
}

// After the system calls: a Done may send or close.
void SocketLink::RunDue() { Run(TakeDue(), absl::OkStatus()); }

// Starts no I/O: the direction waits for its turn, and edge-triggered events do not repeat.
void SocketLink::OnReady(uint32_t events) {
  if (closing_) return;
  if (events & EPOLLOUT) shared_->turns.Wait(&writer_);
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) ended_ = true;
  if (ended_ || (events & EPOLLIN)) shared_->turns.Wait(&reader_);
}

FairTurns::Waiter::Work SocketLink::Read(size_t most) {
  FairTurns::Waiter::Work work;
  absl::Status status = Receive(most, &work);
  if (!status.ok() && !closing_) {
    if (!absl::IsUnavailable(status)) SayGoodbye(status);
    Fail(std::move(status));
  }
  work.again = work.again && !closing_;
  return work;
}

absl::StatusOr<MutableBytes> SocketLink::RoomFor(const FrameHeader& header) {
  if (header.type != FrameType::kGoaway) return sink_->Place(header);
  if (header.payload_bytes > kGoawayBytesMax) {
    return absl::InvalidArgumentError("a GOAWAY is too long");
  }
  reason_.resize(header.payload_bytes);
  return std::as_writable_bytes(std::span<char>(reason_));
}

absl::Status SocketLink::Deliver(const FrameHeader& header, MutableBytes payload) {
  shared_->stats.frames_received.fetch_add(1, std::memory_order_relaxed);
  ADDEND_RETURN_IF_ERROR(CheckChecksum(header, payload, peer_));
  if (header.type == FrameType::kGoaway) {
    Fail(FromGoaway(header.detail, reason_));
    return absl::OkStatus();
  }
  return sink_->OnFrame(header, Payload(payload));
}

// Stops I/O and schedules Finish().
void SocketLink::Fail(absl::Status why) {
  if (closing_) return;
  OnClosing();
  closing_ = true;
  BlamePeer(peer_, why, &shared_->stats, &shared_->blamed);
  why_ = std::move(why);
  shared_->loop->Unwatch(fd_.get());
  shared_->turns.Leave(&reader_);
  shared_->turns.Leave(&writer_);
  end_.Schedule();
}

// Ends the link. No member may be touched after gone_.
void SocketLink::Finish() {
  shared_->loop->Unwatch(fd_.get());
  fd_.Reset();
  RunDue();
  Run(TakeAll(), why_);
  if (sink_ != nullptr) sink_->OnClosed(why_);
  if (gone_) gone_(this);
}

}  // namespace addend
