// Reads frames from a socket, straight to where their payloads belong: about one system call for
// each frame, two for a bundle of small ones.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/fair_turns.h"
#include "lib/transport/tcp/records.h"
#include "lib/wire/frame.h"

namespace addend::tcp {

// Whose frames are read.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  // As Sink::Place().
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  // `payload`: what Place() returned.
  virtual absl::Status Take(const FrameHeader& header, MutableBytes payload) = 0;
  // Nothing is to be read any more.
  virtual bool closing() const = 0;
};

class FrameReader {
 public:
  // `taker` outlives it, `fd` stays open. `peer`: its name, for errors.
  FrameReader(int fd, std::string peer, FrameTaker* taker)
      : fd_(fd), peer_(std::move(peer)), taker_(taker) {}

  // What comes after the frame that is being taken is encrypted. Only in Take().
  void Decrypt(const RecordKey& key) { opener_ = std::make_unique<Opener>(key); }

  // What one call has read.
  struct Progress {
    size_t bytes = 0;
    size_t frames = 0;  // that are complete
    bool more = true;   // there may be more to read
    size_t cost() const { return bytes + frames * FairTurns::kFrameCost; }
  };
  // Reads what is there, up to a cost of about `most`. UNAVAILABLE: the connection has ended.
  absl::Status Read(size_t most, Progress* progress);

 private:
  struct Frame {
    FrameHeader header;
    MutableBytes room;  // empty while the payload is dropped
  };
  absl::Status ReadOnce(size_t most, Progress* progress);
  absl::StatusOr<size_t> Receive(const iovec* vectors, int count, Progress* progress);
  absl::StatusOr<size_t> ReceiveSealed(const iovec* vectors, int count, Progress* progress);
  void KeepSealed();
  int Gather(iovec* vectors);
  absl::Status Distribute(size_t bytes);
  absl::Status OnHeader();
  absl::Status OnBundle(const FrameHeader& header);
  absl::Status OnIndex();
  absl::Status AddFrame(const FrameHeader& header);
  absl::Status TakeComplete();

  const int fd_;
  const std::string peer_;
  FrameTaker* const taker_;
  EncodedHeader header_bytes_;
  size_t header_got_ = 0;
  // The headers of a bundle, while they are read.
  std::vector<std::byte> index_;
  size_t index_got_ = 0;
  size_t bundle_payload_bytes_ = 0;
  // Whose payloads come next, and how much of the first is there.
  std::vector<Frame> frames_;
  size_t next_ = 0;
  size_t next_got_ = 0;
  size_t taken_ = 0;                // frames
  std::unique_ptr<Opener> opener_;  // null: plain text is read
  bool opened_ = false;             // the first bytes went to the opener
};

}  // namespace addend::tcp
