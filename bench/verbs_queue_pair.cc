#include "bench/verbs_queue_pair.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"

namespace addend::verbs {
namespace {

constexpr uint8_t kPort = 1;
// 4.096 us * 2^17 = 0.5 s until a packet is resent: soft-RoCE on a busy machine needs that.
constexpr uint8_t kAckTimeout = 17;
constexpr uint8_t kRetries = 7;
constexpr uint8_t kRetriesWithoutReceive = 7;  // 7 means without a limit
constexpr uint8_t kHops = 64;

absl::Status Failed(const Device& device, const char* what, int error) {
  return absl::InternalError(
      absl::StrFormat("cannot %s on %s: %s", what, device.name(), std::strerror(error)));
}

absl::Status Missing(std::string sentence) {
  return WithKind(absl::NotFoundError(sentence), FailureKind::kPermission);
}

struct FreeList {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};

// Returns whether a RoCE v2 entry has an IPv4 address, ::ffff:a.b.c.d.
bool IsIpv4(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(const std::string& name, int gid_index) {
  int count = 0;
  const std::unique_ptr<ibv_device*, FreeList> list(ibv_get_device_list(&count));
  if (list == nullptr || count == 0) return Missing("this machine has no RDMA device");
  const std::span<ibv_device*> devices(list.get(), static_cast<size_t>(count));
  const auto found = std::find_if(devices.begin(), devices.end(), [&name](ibv_device* device) {
    return name.empty() || name == ibv_get_device_name(device);
  });
  if (found == devices.end()) {
    return Missing(absl::StrFormat("this machine has no RDMA device '%s'", name));
  }
  const std::string opened = ibv_get_device_name(*found);
  Owned<ibv_context> context(ibv_open_device(*found));
  if (context == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrFormat("cannot open the RDMA device %s: %s", opened, std::strerror(errno)));
  }
  std::unique_ptr<Device> device(new Device(std::move(context), opened));
  ADDEND_RETURN_IF_ERROR(device->Prepare(gid_index));
  return device;
}

absl::Status Device::Prepare(int gid_index) {
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(context(), &attributes)) {
    return Failed(*this, "ask for the limits", error);
  }
  entries_most_ = static_cast<uint32_t>(attributes.max_sge);
  if (const int error = ibv_query_port(context(), kPort, &port_)) {
    return Failed(*this, "ask for port 1", error);
  }
  if (port_.state != IBV_PORT_ACTIVE) {
    return Missing(absl::StrFormat("port 1 of the RDMA device %s is not active: %s", name_,
                                   ibv_port_state_str(port_.state)));
  }
  domain_.reset(ibv_alloc_pd(context()));
  if (domain_ == nullptr) return Failed(*this, "make a protection domain", errno);
  return ChooseGid(gid_index);
}

absl::Status Device::ChooseGid(int wanted) {
  std::vector<ibv_gid_entry> entries(static_cast<size_t>(port_.gid_tbl_len));
  const ssize_t count = ibv_query_gid_table(context(), entries.data(), entries.size(), 0);
  if (count < 0) return Failed(*this, "read the GID table", static_cast<int>(-count));
  entries.resize(static_cast<size_t>(count));  // entries in use, each with its index
  const auto find = [&entries](auto&& fits) {
    return std::find_if(entries.begin(), entries.end(), fits);
  };
  auto found = entries.end();
  if (wanted >= 0) {
    found = find([wanted](const auto& e) { return e.gid_index == static_cast<uint32_t>(wanted); });
  } else if (!ethernet()) {
    found = entries.begin();
  } else {
    const auto v2 = [](const auto& e) { return e.gid_type == IBV_GID_TYPE_ROCE_V2; };
    found = find([v2](const auto& e) { return v2(e) && IsIpv4(e.gid); });
    if (found == entries.end()) found = find(v2);
  }
  if (found == entries.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--gid-index=%d: the RDMA device %s has no such address in its GID table", wanted, name_));
  }
  gid_index_ = static_cast<int>(found->gid_index);
  gid_ = found->gid;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Memory>> Memory::Allocate(const Device& device, uint64_t bytes) {
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("there are no %d bytes of memory: %s", bytes, std::strerror(errno)));
  }
  std::unique_ptr<Memory> memory(new Memory({static_cast<uint8_t*>(start), bytes}));
  memory->region_.reset(
      ibv_reg_mr(device.domain(), start, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  if (memory->region_ == nullptr) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "cannot register %d bytes on %s: %s; the limit of locked memory (ulimit -l) may be why",
        bytes, device.name(), std::strerror(errno)));
  }
  return memory;
}

Memory::~Memory() {
  region_.reset();
  ::munmap(bytes_.data(), bytes_.size());
}

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(const Device& device,
                                                             const Room& room) {
  std::unique_ptr<QueuePair> made(new QueuePair(device));
  made->channel_.reset(ibv_create_comp_channel(device.context()));
  if (made->channel_ == nullptr) return Failed(device, "make a completion channel", errno);
  made->completions_.reset(ibv_create_cq(device.context(),
                                         static_cast<int>(room.sends + room.receives), nullptr,
                                         made->channel_.get(), 0));
  if (made->completions_ == nullptr) return Failed(device, "make a completion queue", errno);
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.send_cq = attributes.recv_cq = made->completions_.get();
  attributes.cap = {.max_send_wr = room.sends,
                    .max_recv_wr = room.receives,
                    .max_send_sge = room.entries,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  made->queue_pair_.reset(ibv_create_qp(device.domain(), &attributes));
  if (made->queue_pair_ == nullptr) return Failed(device, "make a queue pair", errno);
  ADDEND_RETURN_IF_ERROR(made->ToReady());
  return made;
}

absl::Status QueuePair::ToReady() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = kPort;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(queue_pair_.get(), &attributes,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? absl::OkStatus() : Failed(device_, "start a queue pair", error);
}

absl::Status QueuePair::ToReceive(const EndAddress& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(peer.mtu, device_.mtu()));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 1;
  attributes.ah_attr.port_num = kPort;
  attributes.ah_attr.dlid = peer.lid;
  if (device_.ethernet()) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(device_.gid_index());
    attributes.ah_attr.grh.hop_limit = kHops;
  }
  const int error =
      ibv_modify_qp(queue_pair_.get(), &attributes,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  return error == 0 ? absl::OkStatus() : Failed(device_, "reach the peer's queue pair", error);
}

absl::Status QueuePair::ToSend() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kAckTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRetriesWithoutReceive;
  attributes.max_rd_atomic = 1;
  const int error = ibv_modify_qp(queue_pair_.get(), &attributes,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? absl::OkStatus() : Failed(device_, "send to the peer's queue pair", error);
}

absl::Status QueuePair::Connect(const EndAddress& peer) {
  ADDEND_RETURN_IF_ERROR(ToReceive(peer));
  return ToSend();
}

absl::Status QueuePair::Write(uint64_t id, std::span<ibv_sge> entries, uint64_t remote_address,
                              uint32_t remote_key, uint32_t immediate) {
  ibv_send_wr request{}, *refused = nullptr;
  request.wr_id = id;
  request.sg_list = entries.data();
  request.num_sge = static_cast<int>(entries.size());
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(immediate);
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = remote_key;
  const int error = ibv_post_send(queue_pair_.get(), &request, &refused);
  return error == 0 ? absl::OkStatus() : Failed(device_, "post a write", error);
}

absl::Status QueuePair::PostReceive() {
  ibv_recv_wr request{}, *refused = nullptr;
  const int error = ibv_post_recv(queue_pair_.get(), &request, &refused);
  return error == 0 ? absl::OkStatus() : Failed(device_, "post a receive", error);
}

absl::StatusOr<std::span<const ibv_wc>> QueuePair::Poll() {
  const int count = ibv_poll_cq(completions_.get(), kBatch, batch_);
  if (count < 0) return Failed(device_, "poll a completion queue", errno);
  const std::span<const ibv_wc> completed(batch_, static_cast<size_t>(count));
  for (const ibv_wc& completion : completed) {
    if (completion.status == IBV_WC_SUCCESS) continue;
    return absl::UnavailableError(absl::StrFormat("a transfer on %s failed: %s", device_.name(),
                                                  ibv_wc_status_str(completion.status)));
  }
  return completed;
}

absl::Status QueuePair::Arm() {
  const int error = ibv_req_notify_cq(completions_.get(), /*solicited_only=*/0);
  return error == 0 ? absl::OkStatus() : Failed(device_, "arm a completion queue", error);
}

absl::Status QueuePair::TakeEvent() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  if (ibv_get_cq_event(channel_.get(), &queue, &unused) != 0) {
    return Failed(device_, "take a completion event", errno);
  }
  ibv_ack_cq_events(queue, 1);
  return absl::OkStatus();
}

}  // namespace addend::verbs
