// Reads frames from a socket, payloads straight to their destination: about one system call for
// each frame, two for a bundle of small frames.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/fair_turns.h"
#include "lib/transport/tcp/records.h"
#include "lib/wire/frame.h"
#include "lib/wire/link_version.h"

namespace addend::tcp {

// The receiver of the frames.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  // Like Sink::Place().
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  // `payload`: the memory that Place() returned.
  virtual absl::Status Take(const FrameHeader& header, MutableBytes payload) = 0;
  // True once no more frames are to be read.
  virtual bool closing() const = 0;
};

class FrameReader {
 public:
  // `taker` must outlive the reader, and `fd` must stay open. `peer`: its name, for errors.
  FrameReader(int fd, std::string peer, FrameTaker* taker)
      : fd_(fd), peer_(std::move(peer)), taker_(taker) {}

  // The link's version, which frames sent on the link have too.
  LinkVersion* version() { return &version_; }

  // Decrypts all bytes that follow the frame that is being taken. Only in Take().
  void Decrypt(const RecordKey& key) { opener_ = std::make_unique<Opener>(key); }

  // The amount that a call has read.
  struct Progress {
    size_t bytes = 0;
    size_t frames = 0;  // complete frames
    bool more = true;   // there may be more to read
    int64_t ns = 0;     // in system calls and with decryption
    size_t cost() const { return bytes + frames * FairTurns::kFrameCost; }
  };
  // Reads up to a cost of about `most`. UNAVAILABLE: the connection has ended.
  absl::Status Read(size_t most, Progress* progress);

 private:
  struct Frame {
    FrameHeader header;
    MutableBytes room;  // empty if the payload is dropped
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
  absl::StatusOr<FrameHeader> Decode(std::span<const std::byte, kFrameHeaderBytes> bytes);
  absl::Status AddFrame(const FrameHeader& header);
  absl::Status TakeComplete();

  const int fd_;
  const std::string peer_;
  FrameTaker* const taker_;
  LinkVersion version_;
  EncodedHeader header_bytes_;
  size_t header_got_ = 0;
  // The headers of a bundle, while they are read.
  std::vector<std::byte> index_;
  size_t index_got_ = 0;
  size_t bundle_payload_bytes_ = 0;
  // The frames whose payloads come next, the index of the first incomplete frame, and the bytes of
  // its payload that are there.
  std::vector<Frame> frames_;
  size_t next_ = 0;
  size_t next_got_ = 0;
  size_t taken_ = 0;                // number of frames
  std::unique_ptr<Opener> opener_;  // null: the stream is plain text
  bool opened_ = false;             // the bytes read behind the last plain frame went to the opener
};

}  // namespace addend::tcp
