// Views of raw memory. A view never owns; whoever hands one out says how long it stays valid.
#pragma once

#include <cstddef>
#include <span>

namespace addend {
using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;
}  // namespace addend
