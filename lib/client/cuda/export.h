// Memory of a GPU that other devices may read. export.cc has it for the device; the tests'
// emulation takes memory that processes share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace addend::client::cuda {

// Allocates memory of the current device, which is number `device`, and describes it by a dma-buf.
// `*memory` is freed with cudaFree; `*dmabuf` is closed by the caller and keeps the memory for whom
// it was passed to. False: `*why` has the reason, without a full stop.
bool ExportMemory(int device, uint64_t bytes, std::byte** memory, int* dmabuf, std::string* why);

}  // namespace addend::client::cuda
