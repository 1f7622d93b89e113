// A kernel that makes its device fail, for the rest of the process.
#include <cuda_runtime_api.h>

namespace {
__global__ void Write(int* address) { *address = 1; }
}  // namespace

void WriteWhereNothingIs(cudaStream_t stream) {
  Write<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(16));
}
