// The bytes and the descriptors that have come through the socket of a link, and are not taken yet.
// Belongs to the link's thread.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"

namespace addend::shm {

class Input {
 public:
  Input() : buffer_(kReadAtOnce) {}

  // The bytes that were read.
  Bytes bytes() const { return Bytes(buffer_).subspan(begin_, end_ - begin_); }
  // The first `count` bytes are taken.
  void Skip(size_t count) { begin_ += count; }
  // INVALID_ARGUMENT: the next descriptor has not come.
  absl::StatusOr<UniqueFd> TakeFile();

  struct Received {
    size_t bytes = 0;      // 0: nothing was there
    size_t into_room = 0;  // of them
    bool more = false;     // there may be more
  };
  // Reads once, first into `room`. Only if all bytes are taken, `room` may have a size.
  // UNAVAILABLE: the connection has ended; the text is the end of a sentence about it.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: descriptors that belong to no record, or that found no
  // place.
  absl::StatusOr<Received> Read(int socket, MutableBytes room);

 private:
  static constexpr size_t kReadAtOnce = 64 << 10;

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<UniqueFd> files_;  // in the order of their records
};

}  // namespace addend::shm
