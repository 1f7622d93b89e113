// The completion queue of a shard on a NIC: polled while there is work and a little longer, then
// asleep on its channel. Belongs to the shard's thread.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/verbs.h"

namespace addend::rdma {

// The id of a work request, which its completion returns: the owner, and an index that the owner
// chose.
struct WorkId {
  static constexpr uint32_t kIndexMax = 0xffffff;
  enum class Kind : uint8_t { kReceive = 1, kMessage = 2, kWrite = 3 };
  uint32_t owner = 0;  // from CompletionTable::Add()
  Kind kind = Kind::kReceive;
  uint32_t index = 0;  // up to kIndexMax
  uint64_t Pack() const { return uint64_t{owner} << 32 | uint64_t(kind) << 24 | index; }
  static WorkId Unpack(uint64_t packed) {
    return {static_cast<uint32_t>(packed >> 32), static_cast<Kind>(packed >> 24 & 0xff),
            static_cast<uint32_t>(packed & kIndexMax)};
  }
};

class CompletionTaker {
 public:
  virtual ~CompletionTaker() = default;
  virtual void OnCompletion(const WorkId& id, const ibv_wc& completion) = 0;
};

// Owners of work requests, by a number that is never used twice. A completion whose owner has gone
// is ignored.
class CompletionTable {
 public:
  uint32_t Add(CompletionTaker* taker) {
    takers_[++last_] = taker;
    return last_;
  }
  void Remove(uint32_t owner) { takers_.erase(owner); }
  CompletionTaker* Find(uint32_t owner) const {
    const auto it = takers_.find(owner);
    return it == takers_.end() ? nullptr : it->second;
  }

 private:
  uint32_t last_ = 0;
  absl::flat_hash_map<uint32_t, CompletionTaker*> takers_;
};

class CompletionQueue final : private FdHandler {
 public:
  // All arguments must outlive the queue. `spin`: how long polling goes on after the last
  // completion.
  static absl::StatusOr<std::unique_ptr<CompletionQueue>> Create(EventLoop* loop,
                                                                 std::shared_ptr<Device> device,
                                                                 const CompletionTable* table,
                                                                 absl::Duration spin);
  ~CompletionQueue() override;

  ibv_cq* get() const { return queue_.get(); }
  const std::shared_ptr<Device>& device() const { return device_; }
  // Makes room for `completions` more. RESOURCE_EXHAUSTED: the device has no room left.
  absl::Status Reserve(int completions);
  void Release(int completions) { reserved_ -= completions; }
  // Handles the completions that are in the queue.
  void Poll();

 private:
  CompletionQueue(EventLoop* loop, std::shared_ptr<Device> device, const CompletionTable* table,
                  absl::Duration spin)
      : loop_(loop), device_(std::move(device)), table_(table), spin_(spin) {}
  void OnReady(uint32_t events) override;
  void Turn();
  int PollOnce();
  absl::Status Arm();

  EventLoop* const loop_;
  const std::shared_ptr<Device> device_;
  const CompletionTable* const table_;
  const absl::Duration spin_;
  Owned<ibv_comp_channel> channel_;
  Owned<ibv_cq> queue_;
  int reserved_ = 0;
  absl::Time last_completion_;
  EndOfTurn turn_{loop_, [this] { Turn(); }};
};

}  // namespace addend::rdma
