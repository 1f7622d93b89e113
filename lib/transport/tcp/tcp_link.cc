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
#include "lib/transport/link_status.h"
#include "lib/transport/tcp/socket.h"

namespace addend::tcp {
namespace {

// One turn of the loop reads at most so much from one link, so that no peer starves the others.
constexpr size_t kBytesPerTurn = 4 << 20;
constexpr size_t kReasonBytesMax = 4096;

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

}  // namespace

TcpLink::TcpLink(EventLoop* loop, UniqueFd fd, const Traits* traits, TransportStats* stats,
                 absl::AnyInvocable<void(TcpLink*)> gone)
    : loop_(loop),
      fd_(std::move(fd)),
      traits_(traits),
      stats_(stats),
      peer_(PeerName(fd_.get())),
      gone_(std::move(gone)),
      incoming_(fd_.get(), peer_, this) {}

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
  outgoing_.Push(header, payload, std::move(done));
  if (closing_) return;  // Finish() runs the Done with the reason
  if (outgoing_.size() > traits_->in_flight_max) {
    return Fail(absl::ResourceExhaustedError(
        absl::StrFormat("%s does not read: %d frames wait for it", peer_, outgoing_.size())));
  }
  if (!want_write_) turn_.Schedule();
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
  outgoing_.Push(header, std::as_bytes(std::span<const char>(goodbye_)), nullptr);
  Flush();
}

void TcpLink::Turn() {
  if (!closing_) Flush();
  std::vector<Done> completed;
  completed.swap(completed_);
  for (Done& done : completed) done(absl::OkStatus());
  if (closing_) Finish();
}

void TcpLink::Flush() {
  while (!outgoing_.empty()) {
    iovec vectors[FrameWriter::kVectors];
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<size_t>(outgoing_.Gather(vectors));
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return Fail(absl::UnavailableError(
          absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno))));
    }
    const auto bytes = static_cast<size_t>(sent);
    stats_->bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
    stats_->frames_sent.fetch_add(outgoing_.Sent(bytes, &completed_), std::memory_order_relaxed);
    if (!completed_.empty()) turn_.Schedule();
  }
  const bool want_write = !outgoing_.empty();
  if (want_write != want_write_) {
    want_write_ = want_write;
    loop_->Modify(fd_.get(), want_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
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
  size_t got = 0;
  const absl::Status status = incoming_.Read(kBytesPerTurn, &got);
  stats_->bytes_received.fetch_add(got, std::memory_order_relaxed);
  return status;
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
  stats_->frames_received.fetch_add(1, std::memory_order_relaxed);
  ADDEND_RETURN_IF_ERROR(CheckChecksum(header, payload, peer_));
  if (header.type == FrameType::kGoaway) {
    Fail(FromGoaway(header.detail, reason_));
    return absl::OkStatus();
  }
  return sink_->OnFrame(header, Payload(payload));
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
  turn_.Schedule();
}

// Ends the link: nothing of it may be touched after gone_.
void TcpLink::Finish() {
  loop_->Unwatch(fd_.get());
  fd_.Reset();
  for (Done& done : completed_) done(absl::OkStatus());
  completed_.clear();
  for (Done& done : outgoing_.TakeAll()) done(why_);
  if (sink_ != nullptr) sink_->OnClosed(why_);
  if (gone_) gone_(this);
}

}  // namespace addend::tcp
