// What waits to be written to a socket, as system calls take it. Small frames that wait one behind
// the other leave in one frame, a BUNDLE (docs/wire-format.md): the receiver gets them with two
// reads instead of one each. No payload is copied. No I/O.
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
  static constexpr int kVectors = 2 * kMaxBundleFrames + 1;  // of a whole bundle
  // With fewer, a bundle saves nothing.
  static constexpr size_t kLeastBundle = 4;

  // `payload` is lent until `done`.
  void Push(const FrameHeader& header, Bytes payload, Done done);
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  // The next bytes to be written; returns in how many vectors. They stay valid until Sent().
  int Gather(iovec (&vectors)[kVectors]);
  // So many of these bytes have been written. Adds the Dones of frames that have left to
  // `completed`; returns how many frames that were.
  size_t Sent(size_t bytes, std::vector<Done>* completed);
  // The Dones of all frames that have not left, in their order. Nothing waits any more.
  std::vector<Done> TakeAll();

 private:
  struct Waiting {
    EncodedHeader header;
    FrameType type;
    PartitionId partition;
    Bytes payload;
    Done done;
    size_t size() const { return header.size() + payload.size(); }
  };
  size_t BundleFrom(size_t first) const;
  void BeginBundle();
  Done PopFront();

  std::deque<Waiting> queue_;
  size_t bundled_ = 0;  // so many from the front are a bundle that is being written
  EncodedHeader bundle_header_;
  size_t bundle_bytes_ = 0;
  size_t sent_ = 0;  // of the bundle, or of the first frame
};

}  // namespace addend::tcp
