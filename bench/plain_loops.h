// The baseline for the kernels of lib/reduce: plain loops as the compiler vectorises them for each
// instruction set of this machine, also with stores that bypass the caches. 16-bit types are summed
// in float32 and rounded once, to nearest even; NaNs get no special treatment.
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

// Returns the loops that this machine can run, for a float type and 2, 4 or 8 inputs; no loops for
// float16 if the processor does not convert it.
std::vector<PlainLoop> PlainSums(DType dtype, size_t inputs);

// Reads all values and returns a number that depends on them.
float ReadAll(std::span<const float> values);
// Stores without reading the old memory content, if the machine can.
void FillAll(std::span<float> values, float value);

}  // namespace addend
