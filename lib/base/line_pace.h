// How often the log hears what strangers cause: they must not fill the disk of this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace addend {

// One line a second. On one thread.
class LinePace {
 public:
  // nullopt: the line is left out. Otherwise what it ends with: nothing, or how many were left out
  // since the last one.
  std::optional<std::string> Next(absl::Time now);

 private:
  absl::Time said_ = absl::InfinitePast();
  uint64_t unsaid_ = 0;
};

}  // namespace addend
