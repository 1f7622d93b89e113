// The kernels of kernels.cu on the host, with the same arithmetic. The arguments are captured by
// copy, as a kernel launch captures them.
#include "lib/client/cuda/arithmetic.h"
#include "lib/client/cuda/kernels.h"
#include "tests/support/emulated_cuda/emulated.h"

namespace addend {

using client::cuda::BFloat16;
using client::cuda::Float16;
using client::cuda::SumInputs;

namespace {

// Callers' memory may be unaligned.
template <typename T>
T At(const void* memory, uint64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(memory) + i * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void Put(void* memory, uint64_t i, T value) {
  std::memcpy(static_cast<char*>(memory) + i * sizeof(T), &value, sizeof(T));
}

template <class Half>
void ConvertOnHost(DType to_dtype, const void* from, void* to, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    if (to_dtype == DType::kFloat32) {
      Put<float>(to, i, Half::Widen(At<uint16_t>(from, i)));
    } else {
      Put<uint16_t>(to, i, Half::Narrow(At<float>(from, i)));
    }
  }
}

cudaError_t Launch(cudaStream_t stream, std::function<void()> kernel) {
  if (emulated::HasFailed()) return cudaErrorIllegalAddress;
  int current = 0;
  cudaGetDevice(&current);
  if (emulated::DeviceOf(stream) != current) return cudaErrorInvalidResourceHandle;
  emulated::Enqueue(stream, [kernel = std::move(kernel)] {
    if (!emulated::HasFailed()) kernel();
  });
  return cudaSuccess;
}

}  // namespace

namespace emulated {

void SumOnHost(DType dtype, ReduceOp op, void* out, const SumInputs& inputs, uint64_t elements) {
  client::cuda::VisitSum(dtype, op, [&](auto element, auto operation) {
    using Element = decltype(element);
    using Operation = decltype(operation);
    using Stored = typename Element::Stored;
    for (uint64_t i = 0; i < elements; ++i) {
      auto sum = Element::Widen(At<Stored>(inputs.at[0], i));
      for (uint32_t j = 1; j < inputs.count; ++j) {
        sum = Operation::Apply(sum, Element::Widen(At<Stored>(inputs.at[j], i)));
      }
      Put<Stored>(out, i, Element::Narrow(sum));
    }
  });
}

}  // namespace emulated

namespace client::cuda {

cudaError_t LoadKernels() { return cudaSuccess; }

cudaError_t OrderedSum(DType dtype, ReduceOp op, void* out, const SumInputs& inputs,
                       uint64_t elements, cudaStream_t stream) {
  return Launch(stream, [=] { emulated::SumOnHost(dtype, op, out, inputs, elements); });
}

cudaError_t Convert(DType from_dtype, const void* from, DType to_dtype, void* to, uint64_t elements,
                    cudaStream_t stream) {
  if (!CanConvert(from_dtype, to_dtype)) return cudaErrorInvalidValue;
  const bool bfloat16 = from_dtype == DType::kBFloat16 || to_dtype == DType::kBFloat16;
  return Launch(stream, [=] {
    if (bfloat16) {
      ConvertOnHost<BFloat16>(to_dtype, from, to, elements);
    } else {
      ConvertOnHost<Float16>(to_dtype, from, to, elements);
    }
  });
}

}  // namespace client::cuda
}  // namespace addend
