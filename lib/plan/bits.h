// Sizes are bytes, bandwidths bits per second.
#pragma once

namespace addend {

inline constexpr double kBitsPerByte = 8;

}  // namespace addend
