// Preloaded into an agent: a NIC that reads dma-bufs, for tests where soft-RoCE is all there is.
// The descriptor is of an emulated GPU's memory (emulated_cuda), which is mapped here and
// registered under the address that the caller means; where the caller has that address nothing can
// be read.
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
