// Owning pointers to libibverbs objects.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace addend::rdma {

struct Release {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_qp* queue_pair) const { ibv_destroy_qp(queue_pair); }
};
template <typename T>
using Owned = std::unique_ptr<T, Release>;

}  // namespace addend::rdma
