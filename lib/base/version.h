// The version of this build, as CMakeLists.txt states it, and that of the protocol it speaks.
#pragma once

#include <cstdint>
#include <string_view>

namespace addend {

std::string_view Version();

// Of the proto files and of the frame. Members with another one are refused when they register
// (exit status 66).
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace addend
