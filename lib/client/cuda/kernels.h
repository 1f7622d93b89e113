// The code that runs on the GPU. kernels.cu implements it for the device; the tests' emulation has
// the same arithmetic (arithmetic.h) on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "lib/base/types.h"
#include "lib/client/pieces.h"

namespace addend::client::cuda {

struct SumInputs {
  const void* at[ipc::kMaxGroup] = {};  // element-aligned
  uint32_t count = 0;                   // at least 1
};

// Call it before any collective is under way: CUDA loads a kernel at its first use and may then
// wait for the whole device, including a collective that waits for another GPU. Returns
// cudaErrorNoKernelImageForDevice or a similar error if the current device cannot run the compiled
// code.
cudaError_t LoadKernels();

// out = inputs.at[0] op inputs.at[1] op ..., bit for bit like ReduceInNode. kAverage and
// kAccumulate add; kBroadcast must not be passed. `out` may equal an input.
cudaError_t OrderedSum(DType dtype, ReduceOp op, void* out, const SumInputs& inputs,
                       uint64_t elements, cudaStream_t stream);

// Conversion of float32 to float16 or bfloat16 (to nearest even), or back. `to` and `from` must not
// overlap.
inline bool CanConvert(DType from, DType to) {
  const auto half = [](DType dtype) {
    return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  };
  return (from == DType::kFloat32 && half(to)) || (half(from) && to == DType::kFloat32);
}
cudaError_t Convert(DType from_dtype, const void* from, DType to_dtype, void* to, uint64_t elements,
                    cudaStream_t stream);

}  // namespace addend::client::cuda
