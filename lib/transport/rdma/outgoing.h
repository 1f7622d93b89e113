// The frames that one end of a link sends, by the rules of credit: which may leave, which wait for
// a grant, and which are done. Knows no queue pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/message.h"
#include "lib/transport/send_limits.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend::rdma {

class OutgoingFrames {
 public:
  struct Frame {
    FrameHeader header;
    Bytes payload;
    Done done;
    Registered memory;  // of the payload, while it is written
    enum class State : uint8_t { kQueued, kAnnounced, kGranted, kDone } state = State::kQueued;

    bool is_inline() const { return payload.size() <= kInlinePayloadMax; }
  };

  // `payload` is lent until the frame's Done is collected.
  void Push(const FrameHeader& header, Bytes payload, Done done);
  // The next frame whose message may leave: inline, it is done with that; else announced. Null:
  // there is none, or no credit.
  Frame* Next();
  // Of one that has left: from its lowest 24 bits.
  uint32_t NumberOf(uint32_t low) const { return first_ + ((low - first_) & 0xffffff); }
  // DATA_LOSS: more than were used.
  absl::Status AddCredits(uint16_t credits);
  // The peer has said where the payload belongs, or that it is not wanted; and it has been written.
  // INVALID_ARGUMENT: nothing like it is awaited.
  absl::StatusOr<Frame*> Granted(uint32_t number);
  absl::Status Dropped(uint32_t number);
  absl::Status Written(uint32_t number);
  // Bytes of payloads that are announced and not written, at most, but always one.
  void LimitAnnounced(size_t bytes) { announced_bytes_max_ = bytes; }

  // Takes the Dones of the first frames that are done, in the order of pushing.
  void CollectDone(std::vector<Done>* done);
  std::vector<Done> TakeAll();
  size_t size() const { return frames_.size(); }
  // Something is on its way that the peer has not taken.
  bool busy() const { return announced_ > 0; }

 private:
  Frame* Find(uint32_t number, Frame::State state);
  absl::Status Finish(uint32_t number, Frame::State state, const char* what);

  std::deque<Frame> frames_;
  uint32_t first_ = 0;  // the number of the first of them
  size_t sent_ = 0;     // so many of them have left
  int credits_ = kFrameCredits;
  int announced_ = 0;
  size_t announced_bytes_ = 0;
  size_t announced_bytes_max_ = SendLimits::kUnlimited;
};

}  // namespace addend::rdma
