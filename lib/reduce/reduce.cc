// Highway compiles the kernels of kernels-inl.h once per instruction set, by including this file
// repeatedly; the part in HWY_ONCE is compiled once and dispatches at run time. Every public
// function becomes a Request for a single pass over memory: memory bandwidth, not arithmetic,
// limits a sum.

#include "lib/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/reduce/reduce.cc"
#include "hwy/foreach_target.h"  // compiles the kernels below for every target
//
#include <algorithm>

#include "hwy/highway.h"
#include "lib/reduce/kernels-inl.h"

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(RunRequest);
HWY_EXPORT(CompiledTargetName);

// The number of elements that take part in an addition: all, except with the planted fault that the
// tests must notice.
size_t Added(size_t elements) {
#ifdef ADDEND_FAULT_LAST_ELEMENT
  if (elements > 1) return elements - 1;
#endif
  return elements;
}

// The bytes of all streams together that a core's cache may still hold.
constexpr size_t kCachedBytes = 1 << 20;
// From this size on a result is not expected in a cache, and it would displace data that may be
// needed.
constexpr size_t kStreamedBytes = 8 << 20;

// Chooses prefetching and streaming stores by the size of the operands; the result does not depend
// on it.
From FromOf(const Request& r) {
  const size_t size = SizeOf(r.dtype);
  if (r.elements * size * (r.inputs + 2) <= kCachedBytes) return From::kCache;
  // Not for results whose begin is not aligned to an element, nor for results written over a
  // contribution.
  const bool in_place =
      r.out == r.first || std::find(r.input, r.input + r.inputs, r.out) != r.input + r.inputs;
  const bool past_caches = r.step == Step::kReduce && r.elements * size >= kStreamedBytes &&
                           reinterpret_cast<uintptr_t>(r.out) % size == 0 && !in_place;
  return past_caches ? From::kMemoryPastCaches : From::kMemory;
}

void Run(Request r) {
  r.from = FromOf(r);
  HWY_DYNAMIC_DISPATCH(RunRequest)(r);
}

Request MakeRequest(Step step, DType dtype, ReduceOp op, void* out, const void* first) {
  Request r = {};
  r.step = step;
  r.dtype = dtype;
  r.op = op;
  r.out = static_cast<uint8_t*>(out);
  r.first = static_cast<const uint8_t*>(first);
  return r;
}

// Runs `r` with the contributions `inputs` on all `elements`.
void RunWith(Request r, std::span<const void* const> inputs, size_t elements) {
  const size_t added = Added(elements);
  r.input = inputs.data();
  r.inputs = inputs.size();
  r.elements = added;
  Run(r);
  if (added == elements) return;
  const size_t in = SizeOf(r.dtype), acc = AccumulatorSizeOf(r.dtype);
  const bool to_accumulators = r.step == Step::kStart || r.step == Step::kAccumulate;
  const bool from_elements = r.step == Step::kStart || r.step == Step::kReduce;
  r.out += added * (to_accumulators ? acc : in);
  r.first += added * (from_elements ? in : acc);
  r.inputs = 0;
  r.elements = elements - added;
  Run(r);
}

}  // namespace

void Start(DType dtype, ReduceOp op, void* acc, std::span<const void* const> inputs,
           size_t elements) {
  RunWith(MakeRequest(Step::kStart, dtype, op, acc, inputs.front()), inputs.subspan(1), elements);
}

void Accumulate(DType dtype, ReduceOp op, void* acc, std::span<const void* const> inputs,
                size_t elements) {
  RunWith(MakeRequest(Step::kAccumulate, dtype, op, acc, acc), inputs, elements);
}

void Finish(DType dtype, ReduceOp op, void* out, const void* acc, size_t elements,
            uint64_t divisor) {
  Request r = MakeRequest(Step::kFinish, dtype, op, out, acc);
  r.elements = elements;
  r.divisor = divisor;
  r.divide = op == ReduceOp::kAverage;
  Run(r);
}

void AccumulateAndFinish(DType dtype, ReduceOp op, void* out, const void* acc,
                         std::span<const void* const> inputs, size_t elements, uint64_t divisor) {
  Request r = MakeRequest(Step::kFinish, dtype, op, out, acc);
  r.divisor = divisor;
  r.divide = op == ReduceOp::kAverage;
  RunWith(r, inputs, elements);
}

void Reduce(DType dtype, ReduceOp op, void* out, std::span<const void* const> inputs,
            size_t elements, uint64_t divisor) {
  Request r = MakeRequest(Step::kReduce, dtype, op, out, inputs.front());
  r.divisor = divisor;
  r.divide = op == ReduceOp::kAverage;
  RunWith(r, inputs.subspan(1), elements);
}

void ReduceInNode(DType dtype, ReduceOp op, void* out, std::span<const void* const> inputs,
                  size_t elements) {
  RunWith(MakeRequest(Step::kReduce, dtype, op, out, inputs.front()), inputs.subspan(1), elements);
}

std::string_view TargetName() { return HWY_DYNAMIC_DISPATCH(CompiledTargetName)(); }

}  // namespace addend
#endif  // HWY_ONCE
