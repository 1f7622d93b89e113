// Searches for infinities and NaNs.
#pragma once

#include <cstddef>
#include <optional>

#include "lib/base/types.h"

namespace addend {

// The index of the first element that is infinite or not a number; nullopt: all are finite.
// Integers are always finite. Any alignment, any thread.
std::optional<size_t> FirstNonFinite(DType dtype, const void* data, size_t elements);

}  // namespace addend
