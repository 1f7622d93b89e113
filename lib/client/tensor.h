// The state of a declared tensor and of one round of it. Plain data of the Context that owns them;
// each block of members says who may touch it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/types.h"
#include "lib/client/device.h"
#include "lib/client/error.h"
#include "lib/client/segment.h"

namespace addend::client {

struct Tensor;
class Device;

// One push-pull, from addend_push_pull until its handle is released and its round has ended.
struct Operation {
  ~Operation();

  // Constant.
  std::shared_ptr<Tensor> tensor;
  int32_t priority = 0;

  // Guarded by the context's mutex. `in` and `out` are the caller's memory.
  const void* in = nullptr;
  void* out = nullptr;
  bool empty = false;                 // contributes nothing
  std::unique_ptr<std::byte[]> kept;  // `in` of a handle that was released while it waited
  bool copying_in = false;            // `in` is being read without the mutex
  bool copying_out = false;           // `out` is being written without the mutex
  uint64_t round = 0;                 // 0: not pushed yet
  // Of memory on a GPU, else null; device.h says who may use it when.
  std::unique_ptr<DeviceRound> on_device;
  bool enqueued = false;  // everything that the GPU has to do for it
  bool tagged = false;
  uint64_t tag = 0;
  std::condition_variable changed;  // `done`, copying_in or copying_out

  // Written once under the mutex; whoever has seen done == true may read the others without it.
  std::atomic<bool> done{false};
  Error error;
  const std::byte* result = nullptr;
};

struct Tensor {
  ~Tensor();
  // Where rounds of a GPU put this rank's part.
  Segment& for_device() const { return group_contribution ? *group_contribution : *contribution; }

  // Constant.
  uint64_t id = 0;  // in Objects, and the request number of kDeclare
  std::string name;
  std::vector<int64_t> shape;
  DType dtype{};
  ReduceOp op{};
  size_t bytes = 0;

  // Written by the reader's thread before `declared`, constant then.
  uint32_t number = 0;  // the agent's
  std::unique_ptr<Segment> contribution;
  std::unique_ptr<Segment> results;  // two slots
  // For rounds of a GPU; written before the first of them, constant then.
  std::unique_ptr<Segment> group_contribution;  // null: `contribution` is the group's
  std::shared_ptr<Device> device;               // that knows these segments
  std::byte* direct = nullptr;  // on the device: where a NIC reads the contribution; null: nowhere

  // Guarded by the context's mutex.
  bool declared = false;    // or refused: see `refusal`
  bool undeclared = false;  // takes no more pushes
  enum class Attached { kNo, kAsked, kYes };
  Attached attached = Attached::kNo;  // the segments are ready for rounds of a GPU
  Error refusal;
  uint64_t rounds = 0;                             // pushed so far
  std::deque<std::shared_ptr<Operation>> pending;  // the first is under way, the others wait
};

}  // namespace addend::client
