#include "lib/base/line_pace.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {
constexpr absl::Duration kPeriod = absl::Seconds(1);
}  // namespace

std::optional<std::string> LinePace::Next(absl::Time now) {
  if (now - since_ >= kPeriod) {
    since_ = now;
    said_ = 0;
  }
  if (said_ >= most_) {
    ++unsaid_;
    return std::nullopt;
  }
  ++said_;
  const uint64_t unsaid = std::exchange(unsaid_, 0);
  return unsaid == 0 ? "" : absl::StrFormat(" (and %d others since the last line)", unsaid);
}

}  // namespace addend
