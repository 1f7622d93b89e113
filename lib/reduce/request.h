// A request from reduce.cc to the kernels. Not for other folders: they use reduce.h.
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

// The probable place of the contributions, and the destination of the results. Never changes a bit.
enum class From {
  kCache,
  kMemory,
  kMemoryPastCaches,  // results are not read soon, and bypass the caches
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
  uint64_t divisor;
  bool divide;
  From from;
};

}  // namespace addend
