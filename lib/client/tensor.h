// The state of a declared tensor and of a round of it. Plain data of Operations; a comment on each
// block of members names the threads that may touch it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/participants.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/client/device.h"
#include "lib/client/error.h"
#include "lib/client/segment.h"

namespace addend::client {

struct Tensor;
class Device;

// A push-pull, from addend_push_pull until its handle is released and its round has ended.
struct Operation {
  ~Operation();

  // Constant.
  std::shared_ptr<Tensor> tensor;
  int32_t priority = 0;

  // Guarded by the mutex of Operations. `in` and `out` are the caller's memory.
  const void* in = nullptr;
  void* out = nullptr;
  bool empty = false;                 // contributes nothing
  std::unique_ptr<std::byte[]> kept;  // `in` of a handle that was released while its push waited
  bool copying_in = false;            // `in` is being read without the mutex
  bool copying_out = false;           // `out` is being written without the mutex
  uint64_t round = 0;                 // 0: not pushed yet
  // For GPU memory, else null; device.h defines its use by threads.
  std::unique_ptr<DeviceRound> on_device;
  bool enqueued = false;  // all GPU work of the round has been enqueued
  bool tagged = false;
  uint64_t tag = 0;
  std::condition_variable changed;  // notified of changes of `done`, copying_in or copying_out

  // Written once under the mutex; a thread that has seen done == true may read the others without
  // it.
  std::atomic<bool> done{false};
  Error error;
  const std::byte* result = nullptr;
};

struct Tensor {
  ~Tensor();
  // The segment that receives this rank's part of GPU rounds.
  Segment& for_device() const { return group_contribution ? *group_contribution : *contribution; }

  // Constant.
  uint64_t id = 0;  // in Objects, and the request number of kDeclare
  std::string name;
  std::vector<int64_t> shape;
  DType dtype{};
  ReduceOp op{};
  std::optional<WireFormat> wire;  // nullopt: the job's
  Participants participants;
  size_t bytes = 0;

  // Written by the reader's thread before `declared`, constant afterwards.
  uint32_t number = 0;  // the agent's
  std::unique_ptr<Segment> contribution;
  std::unique_ptr<Segment> results;  // two slots
  // For GPU rounds; written before the first of them, constant afterwards.
  std::unique_ptr<Segment> group_contribution;  // null: `contribution` is the group's
  std::shared_ptr<Device> device;               // the device that has mapped these segments
  // Device memory from which a NIC reads the contribution; null if no NIC does.
  std::byte* direct = nullptr;

  // Guarded by the mutex of Operations.
  bool declared = false;    // or refused: see `refusal`
  bool undeclared = false;  // accepts no more pushes
  Error refusal;
  uint64_t rounds = 0;  // pushed so far
  // The first operation is under way, the others wait.
  std::deque<std::shared_ptr<Operation>> pending;

  // Guarded by the mutex of DeviceRounds.
  enum class Attached { kNo, kAsked, kYes };
  Attached attached = Attached::kNo;  // the segments are ready for GPU rounds
};

}  // namespace addend::client
