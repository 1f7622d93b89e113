// libibverbs objects with owners: a device, memory that it may use, and a reliable connected queue
// pair on it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/verbs_settings.h"

namespace addend::verbs {

struct Close {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_qp* queue_pair) const { ibv_destroy_qp(queue_pair); }
};
template <typename T>
using Owned = std::unique_ptr<T, Close>;

// An open device with its port 1. Constant, so any thread may use it; outlives the objects made on
// it.
class Device {
 public:
  // An empty name selects the first device; -1 the first GID of RoCE v2 over IPv4, else of RoCE v2.
  static absl::StatusOr<std::unique_ptr<Device>> Open(const std::string& name, int gid_index);

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  const std::string& name() const { return name_; }
  uint32_t entries_most() const { return entries_most_; }
  bool ethernet() const { return port_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  uint16_t lid() const { return port_.lid; }
  uint32_t mtu() const { return port_.active_mtu; }
  int gid_index() const { return gid_index_; }
  const ibv_gid& gid() const { return gid_; }

 private:
  Device(Owned<ibv_context> context, std::string name)
      : context_(std::move(context)), name_(std::move(name)) {}
  absl::Status Prepare(int gid_index);
  absl::Status ChooseGid(int wanted);

  Owned<ibv_context> context_;
  Owned<ibv_pd> domain_;
  std::string name_;
  uint32_t entries_most_ = 0;
  ibv_port_attr port_{};
  int gid_index_ = 0;
  ibv_gid gid_{};
};

// Zeroed memory that begins on a page, which a device may read and its peers may write.
class Memory {
 public:
  static absl::StatusOr<std::unique_ptr<Memory>> Allocate(const Device& device, uint64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::span<uint8_t> bytes() const { return bytes_; }
  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  explicit Memory(std::span<uint8_t> bytes) : bytes_(bytes) {}

  std::span<uint8_t> bytes_;
  Owned<ibv_mr> region_;
};

// Used by its end's thread only. It sends with RDMA WRITE WITH IMMEDIATE.
class QueuePair {
 public:
  struct Room {
    uint32_t sends = 0;
    uint32_t receives = 0;
    uint32_t entries = 0;  // per send
  };
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(const Device& device, const Room& room);

  // Afterwards the peer's writes arrive, and writes may be sent.
  absl::Status Connect(const EndAddress& peer);
  uint32_t number() const { return queue_pair_->qp_num; }

  // Gathers the entries, possibly zero entries, and writes them to the peer's memory. Completes
  // with `id`.
  absl::Status Write(uint64_t id, std::span<ibv_sge> entries, uint64_t remote_address,
                     uint32_t remote_key, uint32_t immediate);
  // Posts a receive for the immediate of a further write.
  absl::Status PostReceive();

  // Returns the completions, in order; empty if there are no completions. Valid until the next
  // call. A completion with an error becomes a status.
  absl::StatusOr<std::span<const ibv_wc>> Poll();
  // Readable when work completes after Arm().
  int fd() const { return channel_->fd; }
  absl::Status Arm();
  absl::Status TakeEvent();

 private:
  explicit QueuePair(const Device& device) : device_(device) {}
  absl::Status ToReady();
  absl::Status ToReceive(const EndAddress& peer);
  absl::Status ToSend();

  static constexpr int kBatch = 32;
  const Device& device_;
  Owned<ibv_comp_channel> channel_;
  Owned<ibv_cq> completions_;
  Owned<ibv_qp> queue_pair_;
  ibv_wc batch_[kBatch];
};

}  // namespace addend::verbs
