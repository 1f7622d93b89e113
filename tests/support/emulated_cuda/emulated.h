// CUDA and NCCL on the host, for tests on machines without a GPU: the sources of lib/client/cuda
// are linked against this emulation unchanged, into libaddend_cuda_emulated.so.
//
// "Device" memory is host memory, and any host pointer is a device pointer: a NumPy array's memory
// can stand for a GPU's. A stream is a thread that works off a queue; the NULL stream is the
// calling thread, at once. NCCL works within a process and across processes of a machine, through
// memory in /dev/shm, for up to 8 ranks; a rank that waits for another for a minute fails.
//
// Environment, read when the library is first used; emulated_cuda_set changes it later:
//   EMULATED_CUDA_DEVICES           8; 0: no device, -1: no driver
//   EMULATED_CUDA_BUS_ID            of every device; default: 0000:3A:00.0 and the following ids
//   EMULATED_CUDA_BYTES_PER_S       0: as fast as the host copies
//   EMULATED_CUDA_FAIL_AFTER_COPIES -1: never. After that many copies every call returns
//                                   cudaErrorIllegalAddress, in this process
//   EMULATED_CUDA_REGISTER_FAILS    1: cudaHostRegister fails
//   EMULATED_CUDA_EXPORT_FAILS      1: no memory can be exported
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "lib/client/cuda/kernels.h"

extern "C" {
// Names: "devices", "bytes_per_s", "fail_after_copies" (also ends a failure), "register_fails",
// "export_fails".
void emulated_cuda_set(const char* name, int64_t value);
// Counts since the process began. "synchronisations": calls that wait for the device; "copies";
// "allocations": of memory, events and streams; "pinned": regions pinned now; "exported": pieces of
// memory exported now.
uint64_t emulated_cuda_count(const char* name);
}

namespace addend::emulated {

// Runs `task` when all earlier tasks of the stream are done.
void Enqueue(cudaStream_t stream, std::function<void()> task);
// Returns the device of a stream; for NULL, the current device.
int DeviceOf(cudaStream_t stream);
// True after a failure of the device: enqueued work is dropped.
bool HasFailed();
void FailNow();

bool ExportFails();
// Records mapped memory, which cudaFree unmaps.
void NoteExported(void* memory, uint64_t bytes);

// Computes the same as OrderedSum, at once.
void SumOnHost(DType dtype, ReduceOp op, void* out, const client::cuda::SumInputs& inputs,
               uint64_t elements);

}  // namespace addend::emulated
