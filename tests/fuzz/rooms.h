// The memory for the payloads of a stream of frames: exactly as large as required. Some partitions
// get none, and others are refused.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/wire/frame.h"
#include "tests/fuzz/check.h"

namespace addend::fuzz {

class Rooms {
 public:
  static constexpr size_t kMost = 64 << 10;

  // As Sink::Place().
  absl::StatusOr<MutableBytes> For(const FrameHeader& header) {
    if (header.partition.value() % 8 == 7) return absl::InvalidArgumentError("refused");
    if (header.partition.value() % 4 == 1 || header.payload_bytes > kMost) return MutableBytes();
    rooms_.emplace_back(header.payload_bytes);
    return MutableBytes(rooms_.back());
  }
  // The payload that has arrived; empty if it was dropped.
  std::string Take(const FrameHeader& header, Bytes payload) {
    if (payload.empty()) return {};
    FUZZ_CHECK(!rooms_.empty() && payload.data() == rooms_.front().data() &&
                   payload.size() == header.payload_bytes,
               "frames come in the order of their rooms");
    std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
    rooms_.pop_front();
    return text;
  }

 private:
  std::deque<std::vector<std::byte>> rooms_;
};

}  // namespace addend::fuzz
