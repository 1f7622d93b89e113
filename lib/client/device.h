// The interface between libaddend and the library that drives a GPU (lib/client/cuda), which is
// loaded for the first tensor of a GPU. Both come from one build, which kDeviceVersion checks. Only
// plain data and virtual functions cross the interface, since each side has its own C++ library.
//
// The steps of a round: Begin, in the caller's thread, marks the position of the caller's stream.
// Then the reader's thread, in an order that is the same on all ranks of the node, calls
// Contribute, and Arrived for every part of the result. The last Arrived has enqueued all work:
// `out` is valid for a stream that was passed to WaitOn. Only Join, Unmap, Export, Unexport and the
// destructor wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/types.h"
#include "lib/client/pieces.h"

namespace addend::client {

inline constexpr uint32_t kDeviceVersion = 2;
inline constexpr size_t kDeviceIdBytes = 128;

// A push-pull of device memory. libaddend sets the first block before Begin; it is constant
// afterwards.
struct DeviceRound {
  uint64_t id = 0;
  uint32_t tensor = 0;  // its number: the same on all ranks of the node
  uint64_t elements = 0;
  DType dtype{};         // as declared, and in host memory
  DType caller_dtype{};  // of `in` and `out`: converted on the device
  ReduceOp op{};
  const void* in = nullptr;  // on the device; null: this rank contributes nothing
  void* out = nullptr;       // on the device; may equal `in`
  // Host memory of the whole tensor, pinned by Map if possible.
  std::byte* contribution = nullptr;  // of the group: every member writes its pieces
  const std::byte* result = nullptr;  // set before the first Arrived
  // Set before Contribute. `direct`: memory of Export, which then receives this rank's pieces
  // instead.
  uint64_t number = 0;  // the round's number
  std::byte* direct = nullptr;

  void* state = nullptr;  // the executor's
};

// The executor's callbacks to libaddend. They run in any thread, on which other callbacks wait: an
// implementation only sends a message.
class DeviceSink {
 public:
  // This rank has staged its part of the first `bytes` of the contribution in host memory.
  virtual void Staged(uint64_t round, uint64_t bytes) = 0;
  // The bytes requested by Fetch are in host memory.
  virtual void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) = 0;
  // The device has failed and cannot be used any more. `why`: one sentence.
  virtual void Failed(const char* why) = 0;

 protected:
  ~DeviceSink() = default;
};

// Drives the device that was current in the thread that made it. A method that returns false leaves
// a readable sentence in Error(), and the executor is of no further use.
class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  // The device's address on the PCI bus: "0000:3b:00.0".
  virtual const char* bus_id() const = 0;
  // Valid until the next failing call.
  virtual const char* Error() const = 0;

  // ---- the group; before any round ----
  // Makes an id for Join; one member makes it for all. `id` has kDeviceIdBytes.
  virtual bool MakeId(char* id) = 0;
  // Blocks until all members have joined. Not needed for a group of a single member. `ordered`:
  // sums in the order of the members, bit for bit as the host would; else in NCCL's order.
  virtual bool Join(const ipc::Group& group, const char* id, bool ordered) = 0;

  // ---- host memory that rounds use ----
  // Pins memory, so that copies run beside all other work. Memory that cannot be pinned works, more
  // slowly: a message says so once.
  virtual void Map(void* memory, size_t bytes, bool read_only) = 0;
  // Waits for the copies under way.
  virtual void Unmap(void* memory) = 0;

  // ---- memory of the device that a NIC reads ----
  // `*dmabuf`: a descriptor of the memory, owned by the caller. Returns false if the device cannot
  // export memory; the device stays usable. Waits for the device.
  virtual bool Export(uint64_t bytes, std::byte** memory, int* dmabuf) = 0;
  // Call it after all uses of the memory have ended. Waits for the device.
  virtual void Unexport(std::byte* memory) = 0;

  // ---- a round ----
  // `stream`: the caller's cudaStream_t, on which `in` is written and `out` is free.
  virtual bool Begin(DeviceRound* round, void* stream) = 0;
  // Aggregates in the group and copies this rank's pieces to host memory, chunk by chunk; Staged
  // follows each chunk. `with_data`: a bit for every member that contributes data.
  virtual bool Contribute(DeviceRound* round, uint64_t with_data) = 0;
  // Copies bytes of a round from `direct` to `contribution`, after Contribute; Fetched follows.
  virtual bool Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes) = 0;
  // Reports that bytes of the result are in host memory. Copies this rank's part to the device; a
  // complete chunk is spread in the group. Sets `*complete` when all work has been enqueued.
  virtual bool Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete) = 0;
  // Makes the stream wait until `out` holds the result. Call it after `*complete`. Any thread.
  virtual bool WaitOn(DeviceRound* round, void* stream) = 0;
  // Frees `state`, whatever the state of the round; enqueued work continues.
  virtual void End(DeviceRound* round) = 0;
};

// The library's only function, named kDeviceEntry: makes an executor for the current device.
// Returns null on failure: `why` (of `why_bytes`) has one sentence.
using MakeDeviceExecutor = DeviceExecutor* (*)(uint32_t version, DeviceSink* sink, char* why,
                                               size_t why_bytes);
inline constexpr char kDeviceEntry[] = "addend_make_device_executor";

}  // namespace addend::client
