// What the kernels of lib/reduce are compared with: the loops that anyone would write, as the
// compiler vectorises them for each instruction set of this machine, and with stores that go past
// the caches. 16-bit types are summed in float32 and rounded once, to nearest even; NaNs are not
// looked at.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lib/base/types.h"

namespace addend {

// out = the inputs' sum, in order. All are aligned to 64 bytes, `elements` is a multiple of 64.
using PlainSum = void (*)(void* out, const void* const* inputs, size_t elements);

struct PlainLoop {
  const char* name;  // "AVX2", "AVX2, non-temporal"
  PlainSum sum;
};

// Those that this machine can run, for a float type and a number of inputs of 2, 4 or 8. None for
// float16 where the processor does not convert it.
std::vector<PlainLoop> PlainSums(DType dtype, size_t inputs);

// Reads all and returns something that depends on it.
float ReadAll(std::span<const float> values);
// Stores without reading what was there before, where the machine can.
void FillAll(std::span<float> values, float value);

}  // namespace addend
