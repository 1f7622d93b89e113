// The packaged Abseil's string_view is a type of its own; the project's interfaces use
// std::string_view.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace addend {

inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }
inline std::string Message(const absl::Status& status) {
  return std::string(ToStd(status.message()));
}

}  // namespace addend
