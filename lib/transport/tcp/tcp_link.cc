#include "lib/transport/tcp/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/tcp/socket.h"
#include "lib/wire/crc32c.h"

namespace addend::tcp {
namespace {

constexpr int kVectorsPerWrite = 64;
// One turn of the loop reads at most so much from one link, so that no peer starves the others.
constexpr size_t kBytesPerTurn = 4 << 20;
constexpr size_t kDropBytes = 64 << 10;
constexpr size_t kReasonBytesMax = 4096;

// Payloads that nobody wants are read to here; one per thread, never looked at.
MutableBytes DropBuffer() {
  thread_local std::vector<std::byte> buffer(kDropBytes);
  return MutableBytes(buffer);
}

// A GOAWAY's `detail`: the status code below, the exit code above.
uint32_t GoawayDetail(const absl::Status& why) {
  return static_cast<uint32_t>(why.raw_code()) | static_cast<uint32_t>(ExitCodeOf(why)) << 8;
}

absl::Status FromGoaway(uint32_t detail, std::string_view reason) {
  const auto code = static_cast<absl::StatusCode>(detail & 0xff);
  if (code == absl::StatusCode::kOk)
    return absl::CancelledError("the peer closed the link on purpose");
  const absl::Status status(code, absl::string_view(reason.data(), reason.size()));
  return WithExitCode(status, static_cast<ExitCode>(detail >> 8 & 0xff));
}

bool IsMalformed(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsFailedPrecondition(status);
}

}  // namespace

TcpLink::TcpLink(EventLoop* loop, UniqueFd fd, const Traits* traits, TransportStats* stats,
                 absl::AnyInvocable<void(TcpLink*)> gone)
    : loop_(loop),
      fd_(std::move(fd)),
      traits_(traits),
      stats_(stats),
      peer_(PeerName(fd_.get())),
      gone_(std::move(gone)) {}

TcpLink::~TcpLink() {
  if (fd_.valid()) loop_->Unwatch(fd_.get());
}

void TcpLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) return Fail(absl::CancelledError("refused"));
  if (absl::Status status = loop_->Watch(fd_.get(), EPOLLIN, this); !status.ok()) Fail(status);
}

void TcpLink::Abandon(absl::Status why) {
  closing_ = true;
  why_ = std::move(why);
  gone_ = nullptr;
  Finish();
}

void TcpLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  Outgoing frame;
  FrameHeader complete = header;
  complete.payload_bytes = static_cast<uint32_t>(payload.size());
  if (complete.flags & kFlagPayloadCrc) complete.payload_crc32c = Crc32c(payload);
  EncodeHeader(complete, &frame.header);
  frame.payload = payload;
  frame.done = std::move(done);
  outgoing_.push_back(std::move(frame));
  if (closing_) return;  // Finish() runs the Done with the reason
  if (outgoing_.size() > traits_->in_flight_max) {
    return Fail(absl::ResourceExhaustedError(
        absl::StrFormat("%s does not read: %d frames wait for it", peer_, outgoing_.size())));
  }
  if (!want_write_) Schedule();
}

void TcpLink::Put(Bytes from, RemoteSlice, uint32_t, Done done) {
  loop_->Defer([done = std::move(done), bytes = from.size()]() mutable {
    done(
        absl::UnimplementedError(absl::StrFormat("TCP has no one-sided writes (%d bytes)", bytes)));
  });
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

// Best effort: what the socket takes at once. A peer that does not get it sees the connection end.
void TcpLink::SayGoodbye(const absl::Status& why) {
  FrameHeader header;
  header.type = FrameType::kGoaway;
  header.detail = GoawayDetail(why);
  goodbye_ = Message(why).substr(0, kReasonBytesMax);
  header.payload_bytes = static_cast<uint32_t>(goodbye_.size());
  Outgoing frame;
  EncodeHeader(header, &frame.header);
  frame.payload = std::as_bytes(std::span<const char>(goodbye_));
  outgoing_.push_back(std::move(frame));
  Flush();
}

// At the end of the loop's turn: all that a turn sends leaves in as few system calls as possible,
// and no Done or OnClosed runs inside a call of the owner's.
void TcpLink::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  loop_->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    scheduled_ = false;
    Turn();
  });
}

void TcpLink::Turn() {
  if (!closing_) Flush();
  std::vector<Done> completed;
  completed.swap(completed_);
  for (Done& done : completed) done(absl::OkStatus());
  if (closing_) Finish();
}

int TcpLink::GatherOutgoing(iovec* vectors, int limit) const {
  int count = 0;
  size_t skip = head_sent_;
  for (const Outgoing& frame : outgoing_) {
    if (count + 2 > limit) break;
    for (const Bytes part : {Bytes(frame.header), frame.payload}) {
      if (skip >= part.size()) {
        skip -= part.size();
        continue;
      }
      vectors[count++] = {const_cast<std::byte*>(part.data()) + skip, part.size() - skip};
      skip = 0;
    }
  }
  return count;
}

void TcpLink::Flush() {
  while (!outgoing_.empty()) {
    iovec vectors[kVectorsPerWrite];
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = GatherOutgoing(vectors, kVectorsPerWrite);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return Fail(absl::UnavailableError(
          absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno))));
    }
    Sent(static_cast<size_t>(sent));
  }
  const bool want_write = !outgoing_.empty();
  if (want_write != want_write_) {
    want_write_ = want_write;
    loop_->Modify(fd_.get(), want_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void TcpLink::Sent(size_t bytes) {
  stats_->bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  head_sent_ += bytes;
  while (!outgoing_.empty() && head_sent_ >= outgoing_.front().size()) {
    head_sent_ -= outgoing_.front().size();
    stats_->frames_sent.fetch_add(1, std::memory_order_relaxed);
    if (outgoing_.front().done) completed_.push_back(std::move(outgoing_.front().done));
    outgoing_.pop_front();
  }
  if (!completed_.empty()) Schedule();
}

void TcpLink::OnReady(uint32_t events) {
  if (closing_) return;
  if (events & EPOLLOUT) Flush();
  if (!closing_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
    absl::Status status = ReadSome();
    if (!status.ok() && !absl::IsUnavailable(status)) SayGoodbye(status);
    if (!status.ok()) Fail(std::move(status));
  }
}

absl::Status TcpLink::ReadSome() {
  size_t total = 0;
  for (bool more = true; more && total < kBytesPerTurn && !closing_;) {
    size_t got = 0;
    ADDEND_RETURN_IF_ERROR(ReadOnce(&got, &more));
    total += got;
  }
  stats_->bytes_received.fetch_add(total, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status TcpLink::ReadError(ssize_t got) const {
  if (got == 0) return absl::UnavailableError(absl::StrFormat("%s closed the connection", peer_));
  return absl::UnavailableError(
      absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno)));
}

// One system call reads the rest of a payload and the next header together: about one call for each
// frame. `more`: there may be more to read, since it got all it asked for.
absl::Status TcpLink::ReadOnce(size_t* got, bool* more) {
  iovec vectors[2];
  int count = 0;
  size_t payload_left = 0;
  if (in_payload_) {
    payload_left = header_.payload_bytes - payload_got_;
    if (payload_.empty()) {
      const MutableBytes drop = DropBuffer();
      payload_left = std::min(payload_left, drop.size());
      vectors[count++] = {drop.data(), payload_left};
    } else {
      vectors[count++] = {payload_.data() + payload_got_, payload_left};
    }
  }
  // Behind a dropped payload that is larger than the drop buffer more payload comes, no header.
  const bool header_follows = !in_payload_ || payload_got_ + payload_left == header_.payload_bytes;
  if (header_follows) {
    vectors[count++] = {header_bytes_.data() + header_got_, kFrameHeaderBytes - header_got_};
  }
  const size_t asked = vectors[0].iov_len + (count > 1 ? vectors[1].iov_len : 0);
  const ssize_t result = ::readv(fd_.get(), vectors, count);
  *more = false;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return absl::OkStatus();
  if (result <= 0) return ReadError(result);
  *got = static_cast<size_t>(result);
  *more = *got == asked;
  size_t rest = *got;
  if (in_payload_) {
    const size_t part = std::min(rest, payload_left);
    payload_got_ += part;
    rest -= part;
    if (payload_got_ == header_.payload_bytes) ADDEND_RETURN_IF_ERROR(DeliverFrame());
  }
  header_got_ += rest;
  if (!closing_ && header_got_ == kFrameHeaderBytes) ADDEND_RETURN_IF_ERROR(OnHeader());
  return absl::OkStatus();
}

absl::Status TcpLink::OnHeader() {
  header_got_ = 0;
  ADDEND_ASSIGN_OR_RETURN(header_, DecodeHeader(header_bytes_));
  payload_got_ = 0;
  payload_ = {};
  if (header_.payload_bytes == 0) return DeliverFrame();
  in_payload_ = true;
  if (header_.type == FrameType::kGoaway) {
    if (header_.payload_bytes > kReasonBytesMax)
      return absl::InvalidArgumentError("a GOAWAY is too long");
    reason_.resize(header_.payload_bytes);
    payload_ = std::as_writable_bytes(std::span<char>(reason_));
    return absl::OkStatus();
  }
  ADDEND_ASSIGN_OR_RETURN(payload_, sink_->Place(header_));
  ADDEND_CHECK(payload_.empty() || payload_.size() == header_.payload_bytes,
               "Place() must return room for the payload, or none");
  return absl::OkStatus();
}

absl::Status TcpLink::DeliverFrame() {
  in_payload_ = false;
  stats_->frames_received.fetch_add(1, std::memory_order_relaxed);
  if ((header_.flags & kFlagPayloadCrc) && !payload_.empty() &&
      Crc32c(payload_) != header_.payload_crc32c) {
    return absl::DataLossError(absl::StrFormat("a payload from %s has a wrong checksum", peer_));
  }
  if (header_.type == FrameType::kGoaway) {
    Fail(FromGoaway(header_.detail, reason_));
    return absl::OkStatus();
  }
  return sink_->OnFrame(header_, Payload(payload_));
}

void TcpLink::Fail(absl::Status why) {
  if (closing_) return;
  closing_ = true;
  if (IsMalformed(why)) {
    stats_->links_malformed.fetch_add(1, std::memory_order_relaxed);
    spdlog::warn("closing the link to {}: {}", peer_, Message(why));
  }
  why_ = std::move(why);
  loop_->Unwatch(fd_.get());
  Schedule();
}

// Ends the link: nothing of it may be touched after gone_.
void TcpLink::Finish() {
  loop_->Unwatch(fd_.get());
  fd_.Reset();
  for (Done& done : completed_) done(absl::OkStatus());
  completed_.clear();
  while (!outgoing_.empty()) {
    Done done = std::move(outgoing_.front().done);
    outgoing_.pop_front();
    if (done) done(why_);
  }
  if (sink_ != nullptr) sink_->OnClosed(why_);
  if (gone_) gone_(this);
}

}  // namespace addend::tcp
