#include <algorithm>

#include "lib/client/cuda/arithmetic.h"
#include "lib/client/cuda/kernels.h"

namespace addend::client::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// Enough blocks to saturate the memory; communication leaves the rest of the device to the
// training.
constexpr uint64_t kMaxBlocks = 512;
constexpr uint32_t kVectorBytes = 16;

// The number of elements that are loaded and stored at once.
template <typename T, uint32_t kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

template <class Element, class Operation, uint32_t kCount>
__device__ void SumPack(void* out, const SumInputs& inputs, uint64_t i) {
  using Stored = Pack<typename Element::Stored, kCount>;
  typename Element::Accumulated sum[kCount];
  Stored pack = static_cast<const Stored*>(inputs.at[0])[i];
#pragma unroll
  for (uint32_t j = 0; j < kCount; ++j) sum[j] = Element::Widen(pack.at[j]);
  for (uint32_t input = 1; input < inputs.count; ++input) {
    pack = static_cast<const Stored*>(inputs.at[input])[i];
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j) {
      sum[j] = Operation::Apply(sum[j], Element::Widen(pack.at[j]));
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < kCount; ++j) pack.at[j] = Element::Narrow(sum[j]);
  static_cast<Stored*>(out)[i] = pack;
}

template <class Element, class Operation, uint32_t kCount>
__global__ void __launch_bounds__(kThreads)
    SumKernel(void* out, const __grid_constant__ SumInputs inputs, uint64_t elements) {
  const uint64_t first = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  const uint64_t packs = elements / kCount;
  for (uint64_t i = first; i < packs; i += step) {
    SumPack<Element, Operation, kCount>(out, inputs, i);
  }
  const uint64_t rest = packs * kCount + first;
  if (kCount > 1 && rest < elements) SumPack<Element, Operation, 1>(out, inputs, rest);
}

template <class Half>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(const float* from, uint16_t* to, uint64_t elements) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += step) {
    to[i] = Half::Narrow(from[i]);
  }
}

template <class Half>
__global__ void __launch_bounds__(kThreads)
    WidenKernel(const uint16_t* from, float* to, uint64_t elements) {
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += step) {
    to[i] = Half::Widen(from[i]);
  }
}

template <typename Kernel>
cudaError_t Load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

uint32_t BlocksFor(uint64_t items) {
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((items + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

bool IsAligned(const void* out, const SumInputs& inputs) {
  uintptr_t all = reinterpret_cast<uintptr_t>(out);
  for (uint32_t i = 0; i < inputs.count; ++i) all |= reinterpret_cast<uintptr_t>(inputs.at[i]);
  return all % kVectorBytes == 0;
}

}  // namespace

cudaError_t LoadKernels() {
  for (int dtype = 0; dtype < kDTypes; ++dtype) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      const cudaError_t status =
          VisitSum(static_cast<DType>(dtype), op, [](auto element, auto operation) {
            using Element = decltype(element);
            using Operation = decltype(operation);
            constexpr uint32_t kCount = kVectorBytes / sizeof(typename Element::Stored);
            const cudaError_t loaded = Load(SumKernel<Element, Operation, kCount>);
            return loaded != cudaSuccess ? loaded : Load(SumKernel<Element, Operation, 1>);
          });
      if (status != cudaSuccess) return status;
    }
  }
  for (const cudaError_t status : {Load(NarrowKernel<Float16>), Load(NarrowKernel<BFloat16>),
                                   Load(WidenKernel<Float16>), Load(WidenKernel<BFloat16>)}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t OrderedSum(DType dtype, ReduceOp op, void* out, const SumInputs& inputs,
                       uint64_t elements, cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  const bool aligned = IsAligned(out, inputs);
  VisitSum(dtype, op, [&](auto element, auto operation) {
    using Element = decltype(element);
    using Operation = decltype(operation);
    constexpr uint32_t kCount = kVectorBytes / sizeof(typename Element::Stored);
    if (aligned) {
      SumKernel<Element, Operation, kCount>
          <<<BlocksFor(elements / kCount), kThreads, 0, stream>>>(out, inputs, elements);
    } else {
      SumKernel<Element, Operation, 1>
          <<<BlocksFor(elements), kThreads, 0, stream>>>(out, inputs, elements);
    }
  });
  return cudaGetLastError();
}

cudaError_t Convert(DType from_dtype, const void* from, DType to_dtype, void* to, uint64_t elements,
                    cudaStream_t stream) {
  if (!CanConvert(from_dtype, to_dtype)) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  const uint32_t blocks = BlocksFor(elements);
  const auto narrow = [&](auto half) {
    NarrowKernel<decltype(half)><<<blocks, kThreads, 0, stream>>>(
        static_cast<const float*>(from), static_cast<uint16_t*>(to), elements);
  };
  const auto widen = [&](auto half) {
    WidenKernel<decltype(half)><<<blocks, kThreads, 0, stream>>>(static_cast<const uint16_t*>(from),
                                                                 static_cast<float*>(to), elements);
  };
  if (to_dtype == DType::kFloat16) narrow(Float16());
  if (to_dtype == DType::kBFloat16) narrow(BFloat16());
  if (from_dtype == DType::kFloat16) widen(Float16());
  if (from_dtype == DType::kBFloat16) widen(BFloat16());
  return cudaGetLastError();
}

}  // namespace addend::client::cuda
