// The reader's state is a list of frames whose payloads are under way, and the header behind them.
// A call of readv() fills the rest of the payloads, at their destinations, and that header
// (Gather); Distribute() then advances the state by the number of bytes that arrived, wherever the
// stream was cut.
//
// A bundle adds a step: its headers arrive first (index_), all of them, because the sink chooses
// the destinations of the payloads by them.

#include "lib/transport/tcp/frame_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/trace/clock.h"
#include "lib/transport/vectors.h"

namespace addend::tcp {
namespace {

constexpr size_t kDropBytes = 64 << 10;
// The least to read, however little is left of a turn: a smaller read is not worth a system call.
constexpr size_t kLeastRead = 16 << 10;
static_assert(kMaxBundledBytes <= kDropBytes, "a dropped payload of a bundle is read at once");

// Returns memory for payloads that are dropped; one buffer per thread, never looked at.
MutableBytes DropBuffer() {
  thread_local std::vector<std::byte> buffer(kDropBytes);
  return MutableBytes(buffer);
}

}  // namespace

absl::Status FrameReader::Read(size_t most, Progress* progress) {
  while (progress->more && progress->cost() < most && !taker_->closing()) {
    ADDEND_RETURN_IF_ERROR(ReadOnce(most - progress->cost(), progress));
  }
  return absl::OkStatus();
}

// Gathers the rest of the payloads and the next header behind them. The headers of a bundle are
// gathered alone: the places of the payloads behind them are not known yet. A dropped payload that
// is larger than the drop buffer ends the list, because more of it comes before the next header.
int FrameReader::Gather(iovec* vectors) {
  if (index_got_ < index_.size()) {
    vectors[0] = {index_.data() + index_got_, index_.size() - index_got_};
    return 1;
  }
  int count = 0;
  for (size_t i = next_; i < frames_.size(); ++i) {
    const size_t got = i == next_ ? next_got_ : 0;
    const size_t left = frames_[i].header.payload_bytes - got;
    if (left == 0) continue;
    if (!frames_[i].room.empty()) {
      vectors[count++] = {frames_[i].room.data() + got, left};
      continue;
    }
    const MutableBytes drop = DropBuffer();
    vectors[count++] = {drop.data(), std::min(left, drop.size())};
    if (left > drop.size()) return count;
  }
  vectors[count++] = {header_bytes_.data() + header_got_, kFrameHeaderBytes - header_got_};
  return count;
}

// A read that returned fewer bytes than it asked for has emptied the socket.
absl::Status FrameReader::ReadOnce(size_t most, Progress* progress) {
  iovec vectors[kMaxBundleFrames + 1];
  int count = Gather(vectors);
  Clip(vectors, &count, std::max(most, kLeastRead));
  const int64_t began = TraceNow();
  const absl::StatusOr<size_t> read = opener_ == nullptr ? Receive(vectors, count, progress)
                                                         : ReceiveSealed(vectors, count, progress);
  progress->ns += TraceNow() - began;
  ADDEND_ASSIGN_OR_RETURN(const size_t got, read);
  if (got == 0) return absl::OkStatus();
  const size_t taken = taken_;
  const absl::Status status = Distribute(got);
  progress->frames += taken_ - taken;
  return status;
}

absl::StatusOr<size_t> FrameReader::Receive(const iovec* vectors, int count, Progress* progress) {
  size_t asked = 0;
  for (const iovec& part : std::span(vectors, static_cast<size_t>(count))) asked += part.iov_len;
  const ssize_t result = ::readv(fd_, vectors, count);
  if (result == 0)
    return absl::UnavailableError(absl::StrFormat("%s closed the connection", peer_));
  if (result < 0) {
    if (errno == EINTR) return 0;
    progress->more = false;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    return absl::UnavailableError(
        absl::StrFormat("the connection to %s broke: %s", peer_, std::strerror(errno)));
  }
  const auto got = static_cast<size_t>(result);
  progress->bytes += got;
  progress->more = got == asked;
  return got;
}

// Takes decrypted bytes first. While some are left there is more to read, whatever the socket said.
absl::StatusOr<size_t> FrameReader::ReceiveSealed(const iovec* vectors, int count,
                                                  Progress* progress) {
  if (opener_->empty()) {
    const MutableBytes room = opener_->room();
    const iovec sealed{room.data(), room.size()};
    ADDEND_ASSIGN_OR_RETURN(const size_t got, Receive(&sealed, 1, progress));
    opener_->Got(got);
  }
  ADDEND_ASSIGN_OR_RETURN(const size_t taken, opener_->Take(vectors, count));
  progress->more = progress->more || !opener_->empty();
  return taken;
}

// Moves encrypted bytes to the opener that were read together with the last plain frame, to the
// place of the next header.
void FrameReader::KeepSealed() {
  opened_ = true;
  std::copy_n(header_bytes_.begin(), header_got_, opener_->room().begin());
  opener_->Got(header_got_);
  header_got_ = 0;
}

// Advances the state by `bytes` in the order of Gather().
absl::Status FrameReader::Distribute(size_t bytes) {
  if (index_got_ < index_.size()) {
    index_got_ += bytes;
    return index_got_ == index_.size() ? OnIndex() : absl::OkStatus();
  }
  while (bytes > 0 && next_ < frames_.size()) {
    const size_t part = std::min(bytes, frames_[next_].header.payload_bytes - next_got_);
    next_got_ += part;
    bytes -= part;
    ADDEND_RETURN_IF_ERROR(TakeComplete());
    if (taker_->closing()) return absl::OkStatus();
  }
  header_got_ += bytes;
  if (opener_ != nullptr && !opened_) {
    KeepSealed();
    return absl::OkStatus();
  }
  return header_got_ == kFrameHeaderBytes ? OnHeader() : absl::OkStatus();
}

absl::Status FrameReader::TakeComplete() {
  while (next_ < frames_.size() && next_got_ == frames_[next_].header.payload_bytes) {
    const Frame frame = frames_[next_];
    ++next_;
    next_got_ = 0;
    ++taken_;
    ADDEND_RETURN_IF_ERROR(taker_->Take(frame.header, frame.room));
    if (taker_->closing()) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status FrameReader::OnHeader() {
  header_got_ = 0;
  frames_.clear();
  next_ = 0;
  ADDEND_ASSIGN_OR_RETURN(const FrameHeader header, Decode(header_bytes_));
  if (header.type == FrameType::kBundle) return OnBundle(header);
  ADDEND_RETURN_IF_ERROR(AddFrame(header));
  return TakeComplete();
}

absl::StatusOr<FrameHeader> FrameReader::Decode(
    std::span<const std::byte, kFrameHeaderBytes> bytes) {
  ADDEND_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(bytes));
  ADDEND_RETURN_IF_ERROR(version_.Check(header));
  return header;
}

absl::Status FrameReader::AddFrame(const FrameHeader& header) {
  MutableBytes room;
  if (header.payload_bytes > 0) {
    ADDEND_ASSIGN_OR_RETURN(room, taker_->Place(header));
    ADDEND_CHECK(room.empty() || room.size() == header.payload_bytes,
                 "Place() must return room for the payload, or none");
  }
  frames_.push_back({header, room});
  return absl::OkStatus();
}

absl::Status FrameReader::OnBundle(const FrameHeader& header) {
  const size_t index_bytes = size_t{header.detail} * kFrameHeaderBytes;
#ifdef ADDEND_FAULT_BUNDLE_FRAMES
  constexpr size_t kFramesMost = 1000;
#else
  constexpr size_t kFramesMost = kMaxBundleFrames;
#endif
  if (header.detail == 0 || header.detail > kFramesMost || header.payload_bytes < index_bytes ||
      header.payload_bytes - index_bytes > kMaxBundlePayloadBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("a bundle of %d frames cannot have %d bytes",
                                                      header.detail, header.payload_bytes));
  }
  index_.resize(index_bytes);
  index_got_ = 0;
  bundle_payload_bytes_ = header.payload_bytes - index_bytes;
  return absl::OkStatus();
}

absl::Status FrameReader::OnIndex() {
  const size_t count = index_.size() / kFrameHeaderBytes;
  size_t payload_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::span<const std::byte, kFrameHeaderBytes> bytes(index_.data() + i * kFrameHeaderBytes,
                                                              kFrameHeaderBytes);
    ADDEND_ASSIGN_OR_RETURN(const FrameHeader header, Decode(bytes));
    const auto same = [&](const Frame& other) {
      return other.header.partition == header.partition;
    };
    if (!MayBeBundled(header.type, header.payload_bytes) ||
        std::any_of(frames_.begin(), frames_.end(), same)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a %s frame of %d bytes, or a second frame for the same partition, does "
                          "not belong into a bundle",
                          Name(header.type), header.payload_bytes));
    }
    payload_bytes += header.payload_bytes;
    ADDEND_RETURN_IF_ERROR(AddFrame(header));
  }
  if (payload_bytes != bundle_payload_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the frames of a bundle have %d bytes instead of %d", payload_bytes,
                        bundle_payload_bytes_));
  }
  return TakeComplete();
}

}  // namespace addend::tcp
