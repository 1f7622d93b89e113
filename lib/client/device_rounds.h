// The rounds of GPU memory: the group of ranks that aggregate on their GPUs, the segments that
// receive copies, and the rounds under way. device_library.h hides all access to the GPU.
//
// Owned by the Context, and has a mutex of its own, which is never held during a call to the GPU
// library or to FailFn. Begin may block: it may be called from any thread of the caller. The
// methods for the agent's messages are called by the reader's thread, and never wait for other
// ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/client/device_library.h"
#include "lib/client/error.h"
#include "lib/client/messages.h"
#include "lib/client/tensor.h"

namespace addend::client {

// The GPU memory of a push: its source, and the target of its result.
struct DeviceMemory {
  const void* in = nullptr;  // null: contributes nothing
  void* out = nullptr;
  DType dtype{};           // of `in` and `out`
  void* stream = nullptr;  // the caller's
};

class DeviceRounds {
 public:
  // Sends to the agent. Any thread; called within CUDA's callbacks, so it only queues.
  using SendFn = std::function<void(const ipc::Encoded&, GuardedFd)>;
  // Fails the job. Any thread.
  using FailFn = std::function<void(const Error&)>;
  using OpenFn = std::function<Error(std::shared_ptr<DeviceSink>, std::shared_ptr<Device>*)>;

  // `agent`: its socket's path, for messages.
  DeviceRounds(std::string agent, SendFn send, FailFn fail, OpenFn open = Device::Open);

  // ---- the caller's threads ----
  // Marks the position of the caller's stream for the operation's round; `id` is unique in the
  // process. The first call of the process opens the GPU, and waits for the first call of the other
  // local ranks; the first call for a tensor waits for its segments.
  Error Begin(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory, uint64_t id,
              Operation* operation);
  // The operation's turn has come: its round has a number.
  void Start(Operation* operation);
  // Ends all waiting calls, and every later Begin, with this error.
  void End(const Error& error);
  // The GPU library's callbacks have no effect from now on. Waits for a callback under way.
  void Detach();

  // ---- the agent's messages ----
  Error OnGroup(const ipc::GroupMessage& message);
  void OnGroupId(const ipc::GroupIdMessage& message);
  // The descriptor of the group's contribution.
  Error OnAttached(Tensor* tensor, const std::vector<GuardedFd>& fds);
  Error OnContribute(Operation* operation, const ipc::ContributeMessage& message);
  Error OnFetch(Operation* operation, const ipc::FetchMessage& message);
  Error OnArrived(Operation* operation, const ipc::ArrivedMessage& message);
  // No NIC reads contributions from this GPU.
  void OnNotDirect() { direct_ = false; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Sink;
  // A round whose contribution is not complete in host memory.
  struct Staging {
    uint32_t tensor;
    uint64_t round;
    uint64_t bytes;
  };

  // Methods with a Lock parameter require mu_ to be held, and may release it temporarily.
  Error Open(std::shared_ptr<Device>* device);
  Error JoinGroup(Lock& lock, Device* device);
  Error Attach(Tensor* tensor, const std::shared_ptr<Device>& device);
  void OfferDirect(Tensor* tensor, Device* device);
  void OnStaged(uint64_t id, uint64_t bytes);
  void OnFetched(const ipc::FetchedMessage& message);
  void Fail(const Error& error);

  const std::string agent_;
  const SendFn send_;
  const FailFn fail_;
  const OpenFn open_;
  std::atomic<bool> direct_{false};  // a NIC reads this GPU's contributions

  // The mutex is taken within CUDA's callbacks.
  std::mutex staging_mu_;
  std::unordered_map<uint64_t, Staging> staging_;  // guarded by staging_mu_; by DeviceRound::id

  std::mutex mu_;
  // Guarded by mu_.
  bool opening_ = false;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Sink> sink_;
  bool in_group_ = false;  // the agent has sent the group
  bool ordered_ = false;
  ipc::Group group_;
  std::string group_id_;
  Error ended_;
  std::condition_variable changed_;
};

}  // namespace addend::client
