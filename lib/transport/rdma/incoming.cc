// A frame goes through three states: new, granted (the peer may write its payload), complete.
// Frames are placed in the order of sending, and taken in that order. A grant may wait for three
// reasons: the limits of grants and bytes, an earlier frame of the same partition (MayPlace), or
// the link's turn.

#include "lib/transport/rdma/incoming.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend::rdma {

void IncomingFrames::Add(const FrameHeader& header, Bytes payload, int buffer) {
  Frame& frame = frames_.emplace_back();
  frame.header = header;
  frame.payload = payload;
  frame.buffer = buffer;
}

absl::Status IncomingFrames::Announce(const FrameHeader& header) {
  // The sender may see its writes complete before this end sees the completions of the other queue
  // pairs: hence twice the number.
  if (++announced_ > 2 * kAnnouncedMax) {
    return absl::DataLossError("more payloads are announced at a time than was agreed");
  }
  frames_.emplace_back().header = header;
  return absl::OkStatus();
}

absl::Status IncomingFrames::Written(uint32_t number, size_t bytes) {
  const uint32_t index = number - first_;
  if (index >= placed_ || frames_[index].state != Frame::State::kGranted ||
      frames_[index].room.size() != bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%d bytes were written for frame %d, which were not granted", bytes, number));
  }
  Frame& frame = frames_[index];
  frame.state = Frame::State::kComplete;
  frame.memory = {};
  --announced_;
  --granted_;
  granted_bytes_ -= bytes;
  return absl::OkStatus();
}

// Only taken frames have a cost: the grants of a link are bounded, so they follow the frames that
// are taken.
absl::Status IncomingFrames::Advance(size_t most, FairTurns::Waiter::Work* work) {
  absl::Status status;
  work->again = true;
  while (work->again && work->cost < most && status.ok() && !host_->closing()) {
    status = PlaceNext(&work->again);
    if (!status.ok() || frames_.empty() || frames_.front().state != Frame::State::kComplete) {
      continue;
    }
    work->cost += frames_.front().header.payload_bytes + FairTurns::kFrameCost;
    status = TakeFirst();
    work->again = true;
  }
  return status;
}

// A payload is not placed while an earlier frame of its partition is under way: the sink decides
// about the later frame when it has taken the earlier frame. Every queue pair has a receive for
// each grant.
bool IncomingFrames::MayPlace(const Frame& frame) const {
  const size_t bytes = frame.header.payload_bytes;
  if (bytes == 0) return true;
  if (frame.buffer < 0 && granted_ > 0 &&
      (granted_ == kAnnouncedMax || granted_bytes_ + bytes > kGrantedBytesMax)) {
    return false;
  }
  return std::none_of(
      frames_.begin(), frames_.begin() + static_cast<ptrdiff_t>(placed_),
      [&](const Frame& earlier) { return earlier.header.partition == frame.header.partition; });
}

absl::Status IncomingFrames::PlaceNext(bool* placed) {
  *placed = placed_ < frames_.size() && MayPlace(frames_[placed_]);
  if (!*placed) return absl::OkStatus();
  const uint32_t number = first_ + static_cast<uint32_t>(placed_);
  return Place(&frames_[placed_++], number);
}

// Asks the sink for memory. Copies a payload that is in the message; grants or refuses an announced
// payload.
absl::Status IncomingFrames::Place(Frame* frame, uint32_t number) {
  const size_t bytes = frame->header.payload_bytes;
  if (bytes > 0) {
    ADDEND_ASSIGN_OR_RETURN(frame->room, host_->Place(frame->header));
    if (host_->closing()) return absl::OkStatus();
    if (!frame->room.empty() && frame->room.size() != bytes) {
      return absl::InternalError(
          absl::StrFormat("%d bytes of room for %d of payload", frame->room.size(), bytes));
    }
  }
  frame->state = Frame::State::kComplete;
  if (frame->buffer >= 0) {
    if (!frame->room.empty()) std::memcpy(frame->room.data(), frame->payload.data(), bytes);
    return host_->FreeBuffer(std::exchange(frame->buffer, -1));
  }
  if (frame->room.empty()) {
    --announced_;
  } else {
    frame->state = Frame::State::kGranted;
    ++granted_;
    granted_bytes_ += bytes;
  }
  return host_->Grant(number, frame->room, &frame->memory);
}

absl::Status IncomingFrames::TakeFirst() {
  const Frame frame = std::move(frames_.front());
  frames_.pop_front();
  ++first_;
  --placed_;
  return host_->Take(frame.header, frame.room);
}

}  // namespace addend::rdma
