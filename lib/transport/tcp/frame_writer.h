// The send queue of a socket, as vectors for system calls. Small frames that wait behind each other
// leave in one frame, a BUNDLE (docs/wire-format.md): the receiver gets them with two reads instead
// of a read for each. No payload is copied. No I/O.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend::tcp {

class FrameWriter {
 public:
  static constexpr int kVectors = 2 * kMaxBundleFrames + 1;  // for a whole bundle
  // With fewer frames, a bundle saves nothing.
  static constexpr size_t kLeastBundle = 4;

  // `payload` is lent until `done` runs.
  void Push(const FrameHeader& header, Bytes payload, Done done);
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  // Fills `vectors` with the next bytes to write and returns their number. The vectors stay valid
  // until Sent().
  int Gather(iovec (&vectors)[kVectors]);
  // Records that the first `bytes` of the gathered bytes have been written. Adds the Dones of
  // complete frames to `completed`; returns the number of these frames.
  size_t Sent(size_t bytes, std::vector<Done>* completed);
  // Empties the queue. Returns the Dones of all frames that have not left, in order.
  std::vector<Done> TakeAll();

 private:
  struct Waiting {
    EncodedHeader header;
    FrameType type;
    uint16_t version;
    PartitionId partition;
    Bytes payload;
    Done done;
    size_t size() const { return header.size() + payload.size(); }
  };
  size_t BundleFrom(size_t first) const;
  void BeginBundle();
  Done PopFront();

  std::deque<Waiting> queue_;
  size_t bundled_ = 0;  // number of frames at the front in the bundle that is being written
  EncodedHeader bundle_header_;
  size_t bundle_bytes_ = 0;
  size_t sent_ = 0;  // bytes of the bundle, or of the first frame
};

}  // namespace addend::tcp
