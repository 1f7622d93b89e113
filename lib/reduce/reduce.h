// Summation kernels: the arithmetic of a push-pull, bit for bit the same on every machine.
//
// Pure functions over memory that the caller owns; any thread; no allocation; they cannot fail.
// Pointers may have any alignment, sizes are in elements and may be 0. Memory may overlap only
// where a comment says so. The vector instructions are chosen at run time and never change a bit of
// a result.
//
// The rules (docs/architecture.md, "Numerics"):
//  1. Contributions are combined in the order of the calls, starting from the first contribution,
//     not from zero: -0.0 survives.
//  2. float16 and bfloat16 accumulate in float32 and are rounded once, to nearest even; denormals
//     are kept.
//  3. A NaN in a result is the positive quiet NaN without payload.
//  4. kAverage divides the accumulator by `divisor` (a true division) before that rounding;
//     integers divide towards zero.
//  5. Integers wrap modulo 2^N.
//  6. kMin and kMax: NaN wins; of equal values (-0.0 and +0.0) the earlier contribution stays.
// kBroadcast has no arithmetic, kAccumulate adds as kSum does: neither must be passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lib/base/types.h"

namespace addend {

// The first contributions: acc = inputs[0] op inputs[1] op ... in a single pass, widened to
// AccumulatorSizeOf(dtype) bytes an element. `acc` may equal any input where the sizes are the
// same. `inputs` must not be empty.
void Start(DType dtype, ReduceOp op, void* acc, std::span<const void* const> inputs,
           size_t elements);

// Further contributions: acc = acc op inputs[0] op inputs[1] op ... in a single pass.
void Accumulate(DType dtype, ReduceOp op, void* acc, std::span<const void* const> inputs,
                size_t elements);

// out = round(acc / divisor) with SizeOf(dtype) bytes an element; `out` may equal `acc`. Only
// kAverage uses the divisor.
void Finish(DType dtype, ReduceOp op, void* out, const void* acc, size_t elements,
            uint64_t divisor);

// The last contributions and Finish in a single pass: out = finish(acc op inputs[0] op inputs[1]
// ...). `out` may equal `acc` or any input.
void AccumulateAndFinish(DType dtype, ReduceOp op, void* out, const void* acc,
                         std::span<const void* const> inputs, size_t elements, uint64_t divisor);

// All contributions in a single pass: out = finish(inputs[0] op inputs[1] op ...). `out` may equal
// any input. `inputs` must not be empty.
void Reduce(DType dtype, ReduceOp op, void* out, std::span<const void* const> inputs,
            size_t elements, uint64_t divisor);

// Reduces the contributions of a node's local ranks before they travel: a single rounding, no
// division (the server divides). kAverage adds as kSum does.
void ReduceInNode(DType dtype, ReduceOp op, void* out, std::span<const void* const> inputs,
                  size_t elements);

// The vector instructions in use, for logs: "AVX2".
std::string_view TargetName();

}  // namespace addend
