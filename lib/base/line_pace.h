// Limits the rate of log lines that strangers can cause, so that they cannot fill this machine's
// disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace addend {

// Allows `most` lines a second. Used on a single thread.
class LinePace {
 public:
  explicit LinePace(uint64_t most = 1) : most_(most) {}

  // nullopt: the line is dropped. Otherwise the line's suffix: empty, or the number of lines
  // dropped since the last line.
  std::optional<std::string> Next(absl::Time now);

 private:
  const uint64_t most_;
  absl::Time since_ = absl::InfinitePast();
  uint64_t said_ = 0;    // since since_
  uint64_t unsaid_ = 0;  // since the last line
};

}  // namespace addend
