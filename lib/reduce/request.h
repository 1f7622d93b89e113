// What reduce.cc asks of the kernels. Not for other folders: they use reduce.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/types.h"

namespace addend {

enum class Step {
  kStart,       // elements -> accumulators
  kAccumulate,  // accumulators, elements -> accumulators
  kFinish,      // accumulators, elements -> results
  kReduce,      // elements -> results
};

struct Request {
  Step step;
  DType dtype;
  ReduceOp op;
  uint8_t* out;
  const uint8_t* first;
  const void* const* input;  // `inputs` further contributions
  size_t inputs;
  size_t elements;
  uint32_t divisor;
  bool divide;
};

}  // namespace addend
