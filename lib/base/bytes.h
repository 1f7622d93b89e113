// Views of raw memory. A view never owns; the function that returns a view documents how long it
// stays valid.
#pragma once

#include <cstddef>
#include <span>

namespace addend {
using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;
}  // namespace addend
