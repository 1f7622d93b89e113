// The frames that an end of a link receives: placed in the order of sending, and handed to the sink
// in that order when their payloads are there. Knows no queue pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "lib/base/bytes.h"
#include "lib/transport/fair_turns.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/message.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend::rdma {

// The link's services for its incoming frames.
class FrameHost {
 public:
  virtual ~FrameHost() = default;
  // Tells the peer to write the payload of frame `number` into `room`, which stays registered while
  // *memory is kept; if the room is empty, tells the peer to drop the payload.
  virtual absl::Status Grant(uint32_t number, MutableBytes room, Registered* memory) = 0;
  // The message in this buffer is not needed any more.
  virtual absl::Status FreeBuffer(int buffer) = 0;
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  virtual absl::Status Take(const FrameHeader& header, Bytes payload) = 0;
  // True once no more frames are to be taken.
  virtual bool closing() const = 0;
};

class IncomingFrames {
 public:
  // Granted payloads that are not written yet, together, at most; a single larger payload is
  // granted alone.
  static constexpr size_t kGrantedBytesMax = 1 << 20;

  // `host` must outlive this object.
  explicit IncomingFrames(FrameHost* host) : host_(host) {}

  // Adds a frame whose payload, if any, lies in the message in `buffer`. Advance() follows.
  void Add(const FrameHeader& header, Bytes payload, int buffer);
  // Adds an announced frame, whose message is not needed any more. Advance() follows. DATA_LOSS:
  // the peer has announced more payloads than it may.
  absl::Status Announce(const FrameHeader& header);
  // The peer has written the payload of frame `number`. Advance() follows. DATA_LOSS: the write
  // does not match a grant.
  absl::Status Written(uint32_t number, size_t bytes);
  // Places frames and hands over complete frames, up to a cost of about `most`. `*work` gets the
  // cost, and whether there is more to do. Errors come from the host.
  absl::Status Advance(size_t most, FairTurns::Waiter::Work* work);
  // Without a limit of cost.
  absl::Status Advance() {
    FairTurns::Waiter::Work work;
    return Advance(std::numeric_limits<size_t>::max(), &work);
  }

 private:
  struct Frame {
    FrameHeader header;
    Bytes payload;    // in the message
    int buffer = -1;  // of the message; -1: the message is not needed any more
    MutableBytes room;
    Registered memory;
    enum class State : uint8_t { kNew, kGranted, kComplete } state = State::kNew;
  };
  bool MayPlace(const Frame& frame) const;
  absl::Status Place(Frame* frame, uint32_t number);
  absl::Status PlaceNext(bool* placed);
  absl::Status TakeFirst();

  FrameHost* const host_;
  std::deque<Frame> frames_;
  uint32_t first_ = 0;  // the number of the first frame
  size_t placed_ = 0;   // number of placed frames, from the front
  int announced_ = 0;   // announced payloads, neither written nor dropped
  int granted_ = 0;     // announced payloads with a grant
  size_t granted_bytes_ = 0;
};

}  // namespace addend::rdma
