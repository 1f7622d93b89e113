// The tensors of a job and their push-pulls: declarations, the queue of each tensor, outcomes, and
// the job's error, which ends them all.
//
// Owned by the Context; uses the rounds of GPU memory, which outlive this object. No method holds
// the mutex while it waits, or while it copies a contribution or a result; only Release copies `in`
// of a waiting push under the mutex. A send under the mutex never blocks.
//
// Invariants:
//  1. The first of a tensor's pending operations is under way; only that operation may touch the
//     segment of the contribution.
//  2. Round r+1 is pushed only after the result of round r has arrived and is copied out.
//  3. An operation ends exactly once: with its result, the tensor's or the job's error, or at
//     Shutdown.
//  4. Once the job has failed no round begins, and every call returns the job's error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/client/arguments.h"
#include "lib/client/copy.h"
#include "lib/client/device_rounds.h"
#include "lib/client/error.h"
#include "lib/client/messages.h"
#include "lib/client/reading.h"
#include "lib/client/tensor.h"

namespace addend::client {

class Operations {
 public:
  // Sends to the agent, or queues. Called with the mutex held: it calls no method of this object.
  using SendFn = std::function<void(const ipc::Encoded&)>;

  // `agent`: its socket's path, for messages. `copy` is called without the mutex, by several
  // threads at a time.
  Operations(std::string agent, CopyFn copy, SendFn send, DeviceRounds* device_rounds);

  // Waiting calls deliver the agent's messages by it. Before the first call; outlives this. Without
  // it they only wait.
  void DeliverBy(Reading* reading) { reading_ = reading; }

  // ---- the caller's threads ----
  // Blocks until the agent answers. Declaring a name again returns the same tensor, or
  // ADDEND_ERROR_MISMATCH if the declaration differs.
  Error Declare(Declaration declaration, std::shared_ptr<Tensor>* tensor);
  // The two halves of Declare(): the first does not block.
  Error StartDeclaration(Declaration declaration, std::shared_ptr<Tensor>* tensor);
  Error AwaitDeclaration(const std::shared_ptr<Tensor>& tensor);
  // ADDEND_ERROR_STATE while a round is pending.
  Error Undeclare(const std::shared_ptr<Tensor>& tensor);
  // See addend_push_pull.
  Error Push(const std::shared_ptr<Tensor>& tensor, const void* in, void* out, int32_t priority,
             std::shared_ptr<Operation>* operation);
  // Starts a new operation, or lets it wait for the tensor's earlier operations. For memory of a
  // GPU after DeviceRounds::Begin.
  Error Enqueue(const std::shared_ptr<Operation>& operation);
  // Returns ADDEND_ERROR_TIMEOUT, or the operation's outcome. timeout_s < 0: no limit.
  Error Wait(const std::shared_ptr<Operation>& operation, double timeout_s);
  // Returns the caller's memory: `in` and `out` are not touched any more. The round itself
  // continues, because the other ranks count on it.
  void Release(const std::shared_ptr<Operation>& operation);
  void SetTag(const std::shared_ptr<Operation>& operation, uint64_t tag);
  // Returns ADDEND_ERROR_TIMEOUT after timeout_s (< 0: no limit).
  Error NextDone(double timeout_s, uint64_t* tag);

  // ---- the thread that delivers the agent's messages ----
  // The tensor whose declaration awaits this answer, once. Null: no declaration does. The reader
  // sets the segments, then calls EndDeclaration.
  std::shared_ptr<Tensor> TakeDeclared(uint64_t request);
  // `number`: the agent's. An error in `refusal` ends the declaration, and the name is free again.
  void EndDeclaration(const std::shared_ptr<Tensor>& tensor, uint32_t number, Error refusal);
  // Null: the agent's number is unknown, or the tensor has been undeclared since.
  std::shared_ptr<Tensor> Find(uint32_t number) const;
  // Null: that round is not under way.
  std::shared_ptr<Operation> FindUnderWay(uint32_t number, uint64_t round) const;
  // Ends the round's operation with its error, or with the result that is in the segment, and
  // starts the tensor's next operation: both may copy a tensor. ADDEND_ERROR_INTERNAL: that round
  // is not under way.
  Error EndRound(uint32_t number, uint64_t round, Error outcome);

  // ---- any thread ----
  // Ends all operations and calls, those to come included, with the job's error. The first error
  // counts.
  void Fail(const Error& error);
  addend_statistics statistics() const;

  // ---- the end; a caller's thread ----
  // No call begins from now on; operations under way continue. False: closed before.
  bool Close();
  // After Close and the end of the reader: ends the remaining operations, and forgets the tensors.
  void Clear();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Methods with a Lock parameter require mu_ to be held, and may release it temporarily.
  Error Usable(const Lock& lock) const;
  // Waits until `ready`, which is called with mu_ held. False: the time limit passes first.
  template <typename Ready>
  bool WaitFor(std::condition_variable* condition, Lock* lock, double timeout_s, Ready ready);
  void StartPush(const std::shared_ptr<Operation>& operation);
  uint32_t SpunSince(const Lock& lock);
  void StartDevicePush(const Lock& lock, const std::shared_ptr<Operation>& operation);
  std::shared_ptr<Operation> UnderWay(const Lock& lock, uint32_t number, uint64_t round) const;
  void CopyOut(Lock& lock, Operation* operation);
  // Of an operation whose memory is being copied, only notes the error.
  void End(const Lock& lock, const std::shared_ptr<Operation>& operation, Error error);
  // After a copy: true if the job ended meanwhile, and with it the operation.
  bool EndIfDue(const Lock& lock, const std::shared_ptr<Operation>& operation);
  void EndAll(const Lock& lock, const Error& error);

  const std::string agent_;
  const CopyFn copy_;
  const SendFn send_;
  DeviceRounds* const device_rounds_;  // has a mutex of its own
  Reading* reading_ = nullptr;
  std::chrono::microseconds told_spun_{0};  // of reading_->spun(), to the agent; guarded by mu_

  std::atomic<uint64_t> copied_in_bytes_{0};
  std::atomic<uint64_t> copied_out_bytes_{0};
  std::atomic<uint64_t> rounds_{0};

  // Never held during a call to the GPU library, but for the unmapping in Clear(). May be held
  // during a call to device_rounds_->End() and Start(), which do not wait.
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::unordered_map<std::string, std::shared_ptr<Tensor>> by_name_;
  std::unordered_map<uint64_t, std::shared_ptr<Tensor>> by_request_;  // awaiting kDeclared
  std::unordered_map<uint32_t, std::shared_ptr<Tensor>> by_number_;
  std::deque<uint64_t> done_tags_;
  size_t copying_ = 0;  // operations that end with their error after the copy
  Error failure_;       // the job's
  bool shut_ = false;   // Close was called
  size_t waiting_ = 0;  // calls that wait while another thread delivers
  std::condition_variable declared_;
  std::condition_variable tag_done_;
};

}  // namespace addend::client
