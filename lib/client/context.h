// The client of a job: the connection to the agent, the declared tensors and their rounds.
//
// Owned by the table of objects and by the calls under way; owns the socket, the segments and one
// thread, the reader, which receives all messages, copies results out, and starts the pushes that
// waited for an earlier round. Every method may be called from any thread. No method holds the
// mutex while it waits, or while it copies a contribution or a result; only Release copies `in` of
// a waiting push under the mutex. A send under the mutex never blocks.
//
// Invariants:
//  1. The first of a tensor's pending operations is under way; only that operation may touch the
//     segment of the contribution.
//  2. Round r+1 is pushed only after the result of round r has arrived and is copied out.
//  3. An operation ends exactly once: with its result, the tensor's or the job's error, or at
//     Shutdown.
//  4. Once the job has failed the context has no more traffic, and every call returns the job's
//     error.
//
// The context ends with Shutdown (from any thread but the reader, once), which joins the reader. In
// a child of fork() no method is called, not even the destructor (see objects.h).
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
#include <vector>

#include "lib/client/device_rounds.h"
#include "lib/client/error.h"
#include "lib/client/handshake.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"
#include "lib/client/tensor.h"

namespace addend::client {

class Context {
 public:
  // Blocks until all ranks of the job have joined.
  static Error Open(const Settings& settings, std::shared_ptr<Context>* context);
  ~Context();

  const Place& place() const { return place_; }

  // Blocks until the agent answers. Declaring a name again returns the same tensor, or
  // ADDEND_ERROR_MISMATCH if the declaration differs.
  Error Declare(std::string name, std::vector<int64_t> shape, DType dtype, ReduceOp op,
                std::shared_ptr<Tensor>* tensor);
  // ADDEND_ERROR_STATE while a round is pending.
  Error Undeclare(const std::shared_ptr<Tensor>& tensor);

  // See addend_push_pull.
  Error Push(const std::shared_ptr<Tensor>& tensor, const void* in, void* out, int32_t priority,
             std::shared_ptr<Operation>* operation);
  // Returns ADDEND_ERROR_TIMEOUT, or the operation's outcome. timeout_s < 0: no limit.
  Error Wait(const std::shared_ptr<Operation>& operation, double timeout_s);
  // See addend_push_pull_device. The first call of the process waits for the first call of the
  // other local ranks.
  Error PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                       int32_t priority, std::shared_ptr<Operation>* operation);
  // Waits like Wait, then makes the stream wait for the result.
  Error WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s, void* stream);
  // Returns the caller's memory: `in` and `out` are not touched any more. The round itself
  // continues, because the other ranks count on it.
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

  // Methods with a Lock parameter require mu_ to be held, and may release it temporarily.
  Error Usable(const Lock& lock) const;
  Error AwaitDeclared(Lock& lock, const std::shared_ptr<Tensor>& tensor);
  // Starts the operation, or lets it wait for the tensor's earlier operations.
  Error Enqueue(const std::shared_ptr<Operation>& operation);
  void StartPush(const std::shared_ptr<Operation>& operation);
  void StartDevicePush(const Lock& lock, const std::shared_ptr<Operation>& operation);
  void Stage(void* to, const void* from, size_t bytes) const;
  void End(const Lock& lock, const std::shared_ptr<Operation>& operation, Error error);
  void EndAll(const Lock& lock, const Error& error);

  // Methods of the reader thread.
  void StartReader();
  void Read();
  Error OnPacket(Packet packet);
  Error OnDeclared(Packet packet);
  Error MapSegments(const Packet& packet, Tensor* tensor);
  Error OnResult(const Packet& packet);
  Error OnAttached(const Packet& packet);
  // The messages about a round that is under way on the GPU.
  Error OnDevicePacket(const Packet& packet);
  Error FindOnDevice(uint32_t tensor, uint64_t round, std::shared_ptr<Operation>* operation);
  void FailJob(const Error& error);

  // Constant after construction.
  const std::unique_ptr<AgentSocket> socket_;
  const Place place_;
  const double staging_bytes_per_s_;
  std::thread reader_;

  // Only the reader thread uses it.
  ProgressPrinter progress_;

  std::atomic<int32_t> nodes_present_;
  std::atomic<int32_t> nodes_waiting_{0};
  std::atomic<uint64_t> copied_in_bytes_{0};
  std::atomic<uint64_t> copied_out_bytes_{0};
  std::atomic<uint64_t> rounds_{0};

  // Has a mutex of its own.
  DeviceRounds device_rounds_;

  // Never held during a call to the GPU library. May be held during a call to device_rounds_.End()
  // and Start(), which do not wait.
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::unordered_map<std::string, std::shared_ptr<Tensor>> by_name_;
  std::unordered_map<uint64_t, std::shared_ptr<Tensor>> by_request_;  // awaiting kDeclared
  std::unordered_map<uint32_t, std::shared_ptr<Tensor>> by_number_;
  std::deque<uint64_t> done_tags_;
  Error failure_;      // the job's
  bool shut_ = false;  // Shutdown was called
  std::condition_variable declared_;
  std::condition_variable tag_done_;
};

}  // namespace addend::client
