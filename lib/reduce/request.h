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

// Where the contributions probably are, and where the results go. Never changes a bit.
enum class From {
  kCache,
  kMemory,
  kMemoryPastCaches,  // results are not read soon: they need no room in the caches
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
  From from;
};

}  // namespace addend
