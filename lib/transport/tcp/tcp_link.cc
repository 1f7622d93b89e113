// A Done means that the kernel, or the encryption buffer, has a copy of the payload.

#include "lib/transport/tcp/tcp_link.h"

#include <algorithm>
#include <span>

#include "lib/transport/tcp/socket.h"
#include "lib/transport/vectors.h"

namespace addend::tcp {
namespace {

// Bytes encrypted before any of them is written.
constexpr size_t kSealedAtOnce = 512 << 10;

}  // namespace

void TcpLink::Queue(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader signed_header = header;
  incoming_.version()->Sign(&signed_header);
  outgoing_.Push(signed_header, payload, std::move(done));
}

absl::Duration TcpLink::sending_time() const { return BusyTime(fd()); }

void TcpLink::LimitInFlight(size_t bytes) {
  if (bytes > kUnacknowledgedMost && !limited_) return;  // the kernel chooses better
  limited_ = true;
  LimitUnacknowledged(fd(), bytes);
}

absl::Status TcpLink::Encrypt(const LinkKeys& keys) {
  iovec vectors[kVectors];
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
    iovec plain[kVectors];
    int count = outgoing_.Gather(plain);
    const size_t bytes = Clip(plain, &count, kSealedAtOnce);
    sealed_.resize(std::max(sealed_.size(), Sealer::SealedBytes(bytes)));
    sealed_end_ = static_cast<size_t>(sealer_->Seal(plain, count, sealed_.data()) - sealed_.data());
    const size_t frames = outgoing_.Sent(bytes, &completed_);
    shared()->stats.frames_sent.fetch_add(frames, std::memory_order_relaxed);
  }
  vectors[0] = {sealed_.data() + sealed_sent_, sealed_end_ - sealed_sent_};
  return 1;
}

int TcpLink::Gather(iovec (&vectors)[kVectors], int*) {
  return sealer_ == nullptr ? outgoing_.Gather(vectors) : GatherSealed(vectors);
}

size_t TcpLink::OnSent(size_t bytes) {
  shared()->stats.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  if (sealer_ == nullptr) return outgoing_.Sent(bytes, &completed_);
  sealed_sent_ += bytes;
  return 0;  // its frames have been counted
}

void TcpLink::NoteSending(int64_t ns) {
  shared()->stats.sending_ns.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
}

absl::Status TcpLink::Receive(size_t most, FairTurns::Waiter::Work* work) {
  FrameReader::Progress progress;
  const absl::Status status = incoming_.Read(most, &progress);
  TransportStats& stats = shared()->stats;
  stats.bytes_received.fetch_add(progress.bytes, std::memory_order_relaxed);
  stats.receiving_ns.fetch_add(static_cast<uint64_t>(progress.ns), std::memory_order_relaxed);
  // The end of a connection causes no second event.
  *work = {progress.cost(), progress.more || (ended() && progress.bytes > 0)};
  return status;
}

}  // namespace addend::tcp
