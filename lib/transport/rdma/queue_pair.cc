// The states of a reliable connection: INIT (created), RTR (ready to receive: knows the peer), RTS
// (ready to send: timeouts and retries). Every request is signalled, so that each completion gives
// its work id back.

#include "lib/transport/rdma/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/transport/rdma/signals.h"

namespace addend::rdma {
namespace {

// 4.096 us * 2^14 = 67 ms for an acknowledgement, seven times: a path that loses packets gets
// through, a dead path is noticed in a second or two.
constexpr uint8_t kTimeout = 14;
constexpr uint8_t kRetries = 7;
// No retries: the flow control by credit and grants keeps a receive posted.
constexpr uint8_t kReceiverNotReadyRetries = 0;
constexpr uint8_t kMinReceiverNotReadyTimer = 12;
constexpr uint8_t kHopLimit = 64;

ibv_sge Entry(Bytes memory, uint32_t local_key) {
  return {.addr = reinterpret_cast<uint64_t>(memory.data()),
          .length = static_cast<uint32_t>(memory.size()),
          .lkey = local_key};
}

ibv_mtu MtuOf(uint32_t bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && (256u << mtu) <= bytes) mtu = static_cast<ibv_mtu>(mtu + 1);
  return mtu;
}

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(CompletionQueue* completions,
                                                             std::shared_ptr<Domain> domain,
                                                             int sends, int receives) {
  ADDEND_RETURN_IF_ERROR(completions->Reserve(sends + receives));
  std::unique_ptr<QueuePair> made(new QueuePair(completions, std::move(domain), sends + receives));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions->get();
  attributes.cap.max_send_wr = static_cast<uint32_t>(sends);
  attributes.cap.max_recv_wr = static_cast<uint32_t>(receives);
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  made->queue_pair_.reset(ibv_create_qp(made->domain_->get(), &attributes));
  if (made->queue_pair_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s has no queue pair left: %s", completions->device()->name(), std::strerror(errno)));
  }
  made->first_psn_ = std::random_device()() & 0xffffff;
  ADDEND_RETURN_IF_ERROR(made->Initialise());
  return made;
}

QueuePair::~QueuePair() {
  queue_pair_.reset();
  completions_->Release(room_);
}

LaneAddress QueuePair::address() const { return {device()->address(), number(), first_psn_}; }

absl::Status QueuePair::Modify(ibv_qp_attr* attributes, int mask, const char* state) {
  const int error = ibv_modify_qp(queue_pair_.get(), attributes, mask);
  if (error == 0) return absl::OkStatus();
  return PathFailure(absl::UnavailableError(absl::StrFormat(
      "a queue pair of %s does not become %s: %s", device()->name(), state, std::strerror(error))));
}

absl::Status QueuePair::Initialise() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device()->port();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return Modify(&attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "ready to be connected");
}

absl::Status QueuePair::Connect(const LaneAddress& peer) {
  ADDEND_RETURN_IF_ERROR(ReadyToReceive(peer));
  return ReadyToSend();
}

absl::Status QueuePair::ReadyToReceive(const LaneAddress& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(device()->mtu(), MtuOf(peer.port.mtu_bytes));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.first_psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kMinReceiverNotReadyTimer;
  attributes.ah_attr.port_num = device()->port();
  attributes.ah_attr.dlid = peer.port.lid;
  if (peer.port.fabric != Fabric::kInfiniBand) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.sgid_index = device()->gid_index();
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = device()->traffic_class();
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.port.gid.data(), peer.port.gid.size());
  }
  return Modify(&attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "ready to receive");
}

absl::Status QueuePair::ReadyToSend() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_psn_;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverNotReadyRetries;
  attributes.max_rd_atomic = 1;
  return Modify(&attributes,
                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                "ready to send");
}

absl::Status QueuePair::PostReceive(const WorkId& id, MutableBytes room, uint32_t local_key) {
  ibv_sge entry = Entry(room, local_key);
  ibv_recv_wr request{};
  request.wr_id = id.Pack();
  request.sg_list = &entry;
  request.num_sge = room.empty() ? 0 : 1;
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(queue_pair_.get(), &request, &bad);
  if (error == 0) return absl::OkStatus();
  return PathFailure(absl::UnavailableError(
      absl::StrFormat("%s takes no receive: %s", device()->name(), std::strerror(error))));
}

absl::Status QueuePair::PostSend(const WorkId& id, Bytes message, uint32_t local_key) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  return Post(id, message, local_key, &request);
}

absl::Status QueuePair::PostWrite(const WorkId& id, Bytes payload, uint32_t local_key,
                                  const Target& target) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(target.immediate);
  request.wr.rdma.remote_addr = target.address;
  request.wr.rdma.rkey = target.remote_key;
  return Post(id, payload, local_key, &request);
}

absl::Status QueuePair::Post(const WorkId& id, Bytes memory, uint32_t local_key,
                             ibv_send_wr* request) {
  ibv_sge entry = Entry(memory, local_key);
  request->wr_id = id.Pack();
  request->sg_list = &entry;
  request->num_sge = 1;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(queue_pair_.get(), request, &bad);
  if (error == 0) return absl::OkStatus();
  return PathFailure(absl::UnavailableError(
      absl::StrFormat("%s takes no work request: %s", device()->name(), std::strerror(error))));
}

}  // namespace addend::rdma
