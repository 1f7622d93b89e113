// A process's place in a job: the connection to the agent, the declared tensors and their rounds.
//
// Owned by the table of objects and by the calls under way; owns the socket, the segments and one
// thread, the reader, which receives all messages, copies results out, and starts the pushes that
// waited for an earlier round. Every method may be called from any thread, none holds the mutex
// while it copies, sends or waits.
//
// Invariants:
//  1. Of a tensor's pending operations the first is under way, and only it may touch the segment of
//     the contribution.
//  2. Round r+1 is pushed only after the result of round r is here and copied out.
//  3. An operation ends exactly once: with its result, the tensor's or the job's error, or at
//     Shutdown.
//  4. Once the job has failed the context has no more traffic, and every call returns that error.
// Ends with Shutdown (from any thread but the reader, once), which joins the reader. In a child of
// fork() no method is called, not even the destructor (see objects.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "lib/client/device_library.h"
#include "lib/client/error.h"
#include "lib/client/handshake.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"
#include "lib/client/tensor.h"

namespace addend::client {

// What is pushed from a GPU, and where its result goes.
struct DeviceMemory {
  const void* in = nullptr;  // null: nothing
  void* out = nullptr;
  DType dtype{};           // of both
  void* stream = nullptr;  // the caller's
};

class Context {
 public:
  // Blocks until all ranks of the job are there.
  static Error Open(const Settings& settings, std::shared_ptr<Context>* context);
  ~Context();

  const Place& place() const { return place_; }

  // Blocks for the agent's answer. The same name again gives the same tensor, or
  // ADDEND_ERROR_MISMATCH when it differs.
  Error Declare(std::string name, std::vector<int64_t> shape, DType dtype, ReduceOp op,
                std::shared_ptr<Tensor>* tensor);
  // ADDEND_ERROR_STATE while a round is pending.
  Error Undeclare(const std::shared_ptr<Tensor>& tensor);

  // As addend_push_pull.
  Error Push(const std::shared_ptr<Tensor>& tensor, const void* in, void* out, int32_t priority,
             std::shared_ptr<Operation>* operation);
  // ADDEND_ERROR_TIMEOUT, or how the operation ended. timeout_s < 0: no limit.
  Error Wait(const std::shared_ptr<Operation>& operation, double timeout_s);
  // As addend_push_pull_device. The first call of the process waits for the other local ranks'.
  Error PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                       int32_t priority, std::shared_ptr<Operation>* operation);
  // Waits as Wait, then makes the stream wait for the result.
  Error WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s, void* stream);
  // The caller takes its memory back: `in` and `out` are not touched any more. The round itself
  // goes on, because the other ranks count on it.
  void Release(const std::shared_ptr<Operation>& operation);

  void SetTag(const std::shared_ptr<Operation>& operation, uint64_t tag);
  Error NextDone(double timeout_s, uint64_t* tag);

  int32_t nodes_present() const { return nodes_present_; }
  int32_t nodes_waiting() const { return nodes_waiting_; }
  addend_statistics statistics() const;
  void Shutdown();

 private:
  using Lock = std::unique_lock<std::mutex>;
  Context(std::unique_ptr<AgentSocket> socket, const Place& place, double staging_bytes_per_s);

  // Those with a Lock want mu_ held, and may give it back in between.
  Error Usable(const Lock& lock) const;
  Error AwaitDeclared(Lock& lock, const std::shared_ptr<Tensor>& tensor);
  // Starts it, or lets it wait for the tensor's former ones.
  Error Enqueue(const std::shared_ptr<Operation>& operation);
  void StartPush(const std::shared_ptr<Operation>& operation);
  void Stage(void* to, const void* from, size_t bytes) const;
  void End(const Lock& lock, const std::shared_ptr<Operation>& operation, Error error);
  void EndAll(const Lock& lock, const Error& error);

  // Memory of a GPU (context_device.cc).
  class Sink;
  Error OpenDevice(std::shared_ptr<Device>* device);
  Error JoinGroup(Lock& lock, Device* device);
  Error Attach(const std::shared_ptr<Tensor>& tensor, const std::shared_ptr<Device>& device);
  void StartDevicePush(const std::shared_ptr<Operation>& operation);
  Error OnGroup(const Packet& packet);
  Error OnGroupId(const Packet& packet);
  Error OnAttached(const Packet& packet);
  void OfferDirect(Tensor* tensor, Device* device);
  Error OnContribute(const Packet& packet);
  Error OnFetch(const Packet& packet);
  Error OnArrived(const Packet& packet);
  // The operation of a GPU that is under way with this tensor and round.
  Error FindOnDevice(const ipc::Message& message, std::shared_ptr<Operation>* operation);
  void OnStaged(uint64_t id, uint64_t bytes);
  void OnFetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes);
  void FailDevice(const Error& error);
  void DetachDevice();

  // The reader.
  void StartReader();
  void Read();
  Error OnPacket(Packet packet);
  Error OnDeclared(Packet packet);
  Error MapSegments(const Packet& packet, Tensor* tensor);
  Error OnResult(const Packet& packet);
  void FailJob(const Error& error);

  // Constant after construction.
  const std::unique_ptr<AgentSocket> socket_;
  const Place place_;
  const double staging_bytes_per_s_;
  std::thread reader_;

  // The reader's.
  ProgressPrinter progress_;

  std::atomic<int32_t> nodes_present_;
  std::atomic<int32_t> nodes_waiting_{0};
  std::atomic<uint64_t> copied_in_bytes_{0};
  std::atomic<uint64_t> copied_out_bytes_{0};
  std::atomic<uint64_t> rounds_{0};
  std::atomic<bool> direct_{false};  // a NIC reads what this GPU contributes

  // Rounds of a GPU whose contribution is not all in host memory; taken within CUDA's callbacks.
  struct Staging {
    uint32_t tensor;
    uint64_t round;
    uint64_t bytes;
  };
  std::mutex staging_mu_;
  std::unordered_map<uint64_t, Staging> staging_;  // guarded by staging_mu_; by DeviceRound::id

  // Never held while the GPU's library is called.
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::unordered_map<std::string, std::shared_ptr<Tensor>> by_name_;
  std::unordered_map<uint64_t, std::shared_ptr<Tensor>> by_request_;  // awaiting kDeclared
  std::unordered_map<uint32_t, std::shared_ptr<Tensor>> by_number_;
  std::deque<uint64_t> done_tags_;
  // The GPU, once a tensor of it has come.
  bool opening_device_ = false;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Sink> sink_;
  bool in_group_ = false;  // the agent has said with whom
  bool ordered_ = false;
  ipc::Group group_;
  std::string group_id_;
  std::condition_variable device_changed_;
  Error failure_;      // of the job
  bool shut_ = false;  // Shutdown was called
  std::condition_variable declared_;
  std::condition_variable tag_done_;
};

}  // namespace addend::client
