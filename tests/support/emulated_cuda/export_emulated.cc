// Exportable memory on the host: a memfd, whose descriptor stands for a dma-buf.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/client/cuda/export.h"
#include "tests/support/emulated_cuda/emulated.h"

namespace addend::client::cuda {

bool ExportMemory(int /*device*/, uint64_t bytes, std::byte** memory, int* dmabuf,
                  std::string* why) {
  if (emulated::ExportFails()) {
    *why = "its driver gives no dma-buf (that takes its open kernel modules)";
    return false;
  }
  const int fd = ::memfd_create("emulated-dmabuf", MFD_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (mapped == MAP_FAILED) {
    *why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    return false;
  }
  emulated::NoteExported(mapped, bytes);
  *memory = static_cast<std::byte*>(mapped);
  *dmabuf = fd;
  return true;
}

}  // namespace addend::client::cuda
