// The frames that one end of a link receives: placed in the order in which they were sent, and
// handed to the sink in that order when their payloads are there. Knows no queue pair.
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

// What the link does for it.
class FrameHost {
 public:
  virtual ~FrameHost() = default;
  // Tells the peer to write the payload of frame `number` into `room`, which is registered in
  // *memory as long as that is kept; or, if the room is empty, to drop it.
  virtual absl::Status Grant(uint32_t number, MutableBytes room, Registered* memory) = 0;
  // The message in this buffer is not needed any more.
  virtual absl::Status FreeBuffer(int buffer) = 0;
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  virtual absl::Status Take(const FrameHeader& header, Bytes payload) = 0;
  // Nothing is to be taken any more.
  virtual bool closing() const = 0;
};

class IncomingFrames {
 public:
  // Payloads that are being written, together, at most, but always one.
  static constexpr size_t kGrantedBytesMax = 1 << 20;

  // `host` outlives it.
  explicit IncomingFrames(FrameHost* host) : host_(host) {}

  // A frame whose payload, if any, lies in the message in `buffer`; or one that is announced, whose
  // message is not needed any more. Advance() follows.
  void Add(const FrameHeader& header, Bytes payload, int buffer);
  // DATA_LOSS: more of these than the peer may have announced.
  absl::Status Announce(const FrameHeader& header);
  // The peer has written the payload of frame `number`. Advance() follows. DATA_LOSS: not as it was
  // granted.
  absl::Status Written(uint32_t number, size_t bytes);
  // Places what can be placed, and hands over what is complete, up to a cost of about `most`;
  // `*work` is what it was, and whether there is more. An error is of the host.
  absl::Status Advance(size_t most, FairTurns::Waiter::Work* work);
  // All of it.
  absl::Status Advance() {
    FairTurns::Waiter::Work work;
    return Advance(std::numeric_limits<size_t>::max(), &work);
  }

 private:
  struct Frame {
    FrameHeader header;
    Bytes payload;    // in the message
    int buffer = -1;  // that the message is in; -1: it is not needed any more
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
  uint32_t first_ = 0;  // the number of the first of them
  size_t placed_ = 0;   // so many of them are placed
  int announced_ = 0;   // and not written, nor dropped
  int granted_ = 0;     // of these
  size_t granted_bytes_ = 0;
};

}  // namespace addend::rdma
