// A reliable connected queue pair. Every posted request has exactly one scatter-gather entry.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/rdma/completions.h"
#include "lib/transport/rdma/verbs.h"

namespace addend::rdma {

class QueuePair {
 public:
  // Creates a queue pair of `domain` on the device of `completions`, which must outlive it, with
  // room for `sends` and `receives` at a time.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(CompletionQueue* completions,
                                                           std::shared_ptr<Domain> domain,
                                                           int sends, int receives);
  // After this no peer writes through the queue pair, and no posted memory is read.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  LaneAddress address() const;
  const std::shared_ptr<Device>& device() const { return completions_->device(); }
  CompletionQueue* completions() const { return completions_; }
  Domain* domain() const { return domain_.get(); }
  uint32_t number() const { return queue_pair_->qp_num; }
  // Connects to the peer's end. May wait for the address to be resolved.
  absl::Status Connect(const LaneAddress& peer);

  // `local_key`: the key of the memory. A receive without memory serves the peer's PostWrite()
  // only.
  absl::Status PostReceive(const WorkId& id, MutableBytes room, uint32_t local_key);
  absl::Status PostSend(const WorkId& id, Bytes message, uint32_t local_key);
  // Writes into the peer's memory; the peer's receive completes with `immediate`.
  struct Target {
    uint64_t address;
    uint32_t remote_key;
    uint32_t immediate;
  };
  absl::Status PostWrite(const WorkId& id, Bytes payload, uint32_t local_key, const Target& target);

 private:
  QueuePair(CompletionQueue* completions, std::shared_ptr<Domain> domain, int room)
      : completions_(completions), domain_(std::move(domain)), room_(room) {}
  absl::Status Initialise();
  absl::Status ReadyToReceive(const LaneAddress& peer);
  absl::Status ReadyToSend();
  absl::Status Modify(ibv_qp_attr* attributes, int mask, const char* state);
  absl::Status Post(const WorkId& id, Bytes memory, uint32_t local_key, ibv_send_wr* request);

  CompletionQueue* const completions_;
  const std::shared_ptr<Domain> domain_;
  const int room_;  // completions reserved in the completion queue
  Owned<ibv_qp> queue_pair_;
  uint32_t first_psn_ = 0;
};

}  // namespace addend::rdma
