// Frames leave in the order of pushing, while there is credit and room for announced payloads.
// Writes may complete out of order, across queue pairs; Dones run in the order of pushing
// (CollectDone), as the contract of transport.h demands.

#include "lib/transport/rdma/outgoing.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace addend::rdma {

void OutgoingFrames::Push(const FrameHeader& header, Bytes payload, Done done) {
  Frame& frame = frames_.emplace_back();
  frame.header = header;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.payload = payload;
  frame.done = std::move(done);
}

// A payload that alone exceeds the limit of announced bytes is announced alone.
OutgoingFrames::Frame* OutgoingFrames::Next() {
  if (sent_ == frames_.size() || credits_ == 0) return nullptr;
  Frame& frame = frames_[sent_];
  if (frame.is_inline()) {
    frame.state = Frame::State::kDone;
  } else {
    const size_t bytes = frame.payload.size();
    const bool fits = announced_ == 0 || bytes <= announced_bytes_max_ - announced_bytes_;
    if (announced_ == kAnnouncedMax || announced_bytes_ > announced_bytes_max_ || !fits) {
      return nullptr;
    }
    frame.state = Frame::State::kAnnounced;
    ++announced_;
    announced_bytes_ += bytes;
  }
  ++sent_;
  --credits_;
  return &frame;
}

absl::Status OutgoingFrames::AddCredits(uint16_t credits) {
  credits_ += credits;
  if (credits_ <= kFrameCredits) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%d credits came back where %d were given", credits_, kFrameCredits));
}

OutgoingFrames::Frame* OutgoingFrames::Find(uint32_t number, Frame::State state) {
  const uint32_t index = number - first_;
  if (index >= sent_ || frames_[index].state != state) return nullptr;
  return &frames_[index];
}

absl::StatusOr<OutgoingFrames::Frame*> OutgoingFrames::Granted(uint32_t number) {
  Frame* const frame = Find(number, Frame::State::kAnnounced);
  if (frame == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the peer sent an unexpected grant for frame %d", number));
  }
  frame->state = Frame::State::kGranted;
  return frame;
}

absl::Status OutgoingFrames::Dropped(uint32_t number) {
  return Finish(number, Frame::State::kAnnounced, "a refusal of");
}

absl::Status OutgoingFrames::Written(uint32_t number) {
  return Finish(number, Frame::State::kGranted, "the end of");
}

absl::Status OutgoingFrames::Finish(uint32_t number, Frame::State state, const char* what) {
  Frame* const frame = Find(number, state);
  if (frame == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s frame %d was not expected", what, number));
  }
  frame->state = Frame::State::kDone;
  frame->memory = {};
  --announced_;
  announced_bytes_ -= frame->payload.size();
  return absl::OkStatus();
}

void OutgoingFrames::CollectDone(std::vector<Done>* done) {
  while (!frames_.empty() && frames_.front().state == Frame::State::kDone) {
    if (frames_.front().done) done->push_back(std::move(frames_.front().done));
    frames_.pop_front();
    ++first_;
    --sent_;
  }
}

std::vector<Done> OutgoingFrames::TakeAll() {
  std::vector<Done> all;
  for (Frame& frame : frames_) {
    if (frame.done) all.push_back(std::move(frame.done));
  }
  frames_.clear();
  return all;
}

}  // namespace addend::rdma
