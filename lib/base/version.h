// What this build is, for --version, for metrics and for the check that all members of a cluster fit together.
#pragma once

#include <cstdint>

namespace addend {

inline constexpr char kVersion[] = "0.1.0";

// Of the proto files and of the frame. Members with another one are refused when they register (exit status 66).
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace addend
