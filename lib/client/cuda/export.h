// GPU memory that other devices may read. export.cc implements it for the device; the tests'
// emulation uses memory that processes share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace addend::client::cuda {

// Allocates memory of the current device, which is number `device`, and exports it as a dma-buf.
// The caller frees `*memory` with cudaFree and closes `*dmabuf`; a process that received the
// descriptor keeps the memory alive. Returns false on failure: `*why` has the reason, without a
// full stop.
bool ExportMemory(int device, uint64_t bytes, std::byte** memory, int* dmabuf, std::string* why);

}  // namespace addend::client::cuda
