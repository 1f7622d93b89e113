// CUDA and NCCL on the host, for tests on machines without a GPU: the sources of lib/client/cuda
// are linked against it unchanged, into libaddend_cuda_emulated.so.
//
// "Device" memory is host memory, and any host pointer is a device pointer: a NumPy array's memory
// can be given where a GPU's is expected. A stream is a thread that works off a queue; the NULL
// stream is the calling thread, at once. NCCL works within a process and across processes of one
// machine, through memory in /dev/shm, for up to 8 ranks; who waits for another for a minute fails.
//
// Environment, read when the library is first used; emulated_cuda_set changes it later:
//   EMULATED_CUDA_DEVICES           8; 0: no device, -1: no driver
//   EMULATED_CUDA_BUS_ID            of every device; else 0000:3A:00.0 and the next ones
//   EMULATED_CUDA_BYTES_PER_S       0: as fast as the host copies
//   EMULATED_CUDA_FAIL_AFTER_COPIES -1: never. After so many copies everything returns
//                                   cudaErrorIllegalAddress, in this process
//   EMULATED_CUDA_REGISTER_FAILS    1: cudaHostRegister fails
//   EMULATED_CUDA_EXPORT_FAILS      1: no memory can be exported
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "lib/client/cuda/kernels.h"

extern "C" {
// "devices", "bytes_per_s", "fail_after_copies" (also ends a failure), "register_fails",
// "export_fails".
void emulated_cuda_set(const char* name, int64_t value);
// Since the process began. "synchronisations": calls that wait for the device; "copies";
// "allocations": of memory, events and streams; "pinned": regions that are; "exported": pieces of
// memory that are.
uint64_t emulated_cuda_count(const char* name);
}

namespace addend::emulated {

// Runs `task` when everything before it in the stream is done.
void Enqueue(cudaStream_t stream, std::function<void()> task);
// The device of a stream; of NULL, the current one.
int DeviceOf(cudaStream_t stream);
// The device has failed: what is enqueued is not done any more.
bool HasFailed();
void FailNow();

bool ExportFails();
// Mapped memory, which cudaFree unmaps.
void NoteExported(void* memory, uint64_t bytes);

// As OrderedSum, at once.
void SumOnHost(DType dtype, ReduceOp op, void* out, const client::cuda::SumInputs& inputs,
               uint64_t elements);

}  // namespace addend::emulated
