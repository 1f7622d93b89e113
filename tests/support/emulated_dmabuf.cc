// Preloaded into an agent: emulates a NIC that reads dma-bufs, for tests with only soft-RoCE. The
// descriptor belongs to an emulated GPU's memory (emulated_cuda); it is mapped here and registered
// under the caller's address, from which the caller itself could not read.
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

extern "C" ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length, uint64_t iova,
                                     int fd, int access) {
  // Never unmapped: an agent registers a few tensors.
  void* const memory =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  std::fprintf(stderr, "emulated dma-buf: %zu bytes registered\n", length);
  return ibv_reg_mr_iova2(domain, memory, length, iova, static_cast<unsigned>(access));
}
