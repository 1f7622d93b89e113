// Between libaddend and the library that drives a GPU (lib/client/cuda), which is loaded when the
// first tensor of a GPU comes. Both come from one build: kDeviceVersion says so. Only plain data
// and virtual functions cross it, since each side has a C++ library of its own.
//
// The way of a round: Begin in the caller's thread marks where the caller's stream stands. Then the
// reader's thread, in an order that is the same on all ranks of the node, calls Contribute, Arrived
// for every part of the result, and the last of these has enqueued everything: `out` is valid for a
// stream that WaitOn has told. No function waits for the device but Join and the destructor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/types.h"
#include "lib/client/pieces.h"

namespace addend::client {

inline constexpr uint32_t kDeviceVersion = 2;
inline constexpr size_t kDeviceIdBytes = 128;

// One push-pull of memory of the device. The first block is set by libaddend before Begin and
// constant then.
struct DeviceRound {
  uint64_t id = 0;
  uint32_t tensor = 0;  // its number: the same on all ranks of the node
  uint64_t elements = 0;
  DType dtype{};         // as declared, and in host memory
  DType caller_dtype{};  // of `in` and `out`: converted on the device
  ReduceOp op{};
  const void* in = nullptr;  // on the device; null: this rank contributes nothing
  void* out = nullptr;       // on the device; may equal `in`
  // Host memory of the whole tensor, pinned by Map where that is possible.
  std::byte* contribution = nullptr;  // of the group: every member writes its pieces
  const std::byte* result = nullptr;  // set before the first Arrived
  // Set before Contribute. `direct`: memory of Export, where this rank's pieces go instead.
  uint64_t number = 0;  // of the tensor's rounds
  std::byte* direct = nullptr;

  void* state = nullptr;  // the executor's
};

// What the executor tells libaddend, from any thread and possibly from within CUDA's callbacks,
// where nothing of CUDA may be called: it only sends a message.
class DeviceSink {
 public:
  // This rank has done its part of the first `bytes` of the contribution in host memory.
  virtual void Staged(uint64_t round, uint64_t bytes) = 0;
  // What Fetch was asked for is there.
  virtual void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) = 0;
  // The device has failed: nothing of it can be used any more. One sentence.
  virtual void Failed(const char* why) = 0;

 protected:
  ~DeviceSink() = default;
};

// Drives the device that was current in the thread that made it. False: Error() has one sentence
// for people, and the executor is of no further use.
class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  // The device's place on the PCI bus: "0000:3b:00.0".
  virtual const char* bus_id() const = 0;
  // Valid until the next failing call.
  virtual const char* Error() const = 0;

  // ---- the group; before any round ----
  // An id for Join, made by one member for all. `id` has kDeviceIdBytes.
  virtual bool MakeId(char* id) = 0;
  // Blocks until all members have joined. Not needed for a group of one. `ordered`: sums in the
  // order of the members, bit for bit as the host would; else in an order of NCCL's.
  virtual bool Join(const ipc::Group& group, const char* id, bool ordered) = 0;

  // ---- host memory that rounds use ----
  // Pins memory, so that copies run beside everything else. What cannot be pinned works, slower: it
  // says so once.
  virtual void Map(void* memory, size_t bytes, bool read_only) = 0;
  // After the copies that are under way.
  virtual void Unmap(void* memory) = 0;

  // ---- memory of the device that a NIC reads ----
  // `*dmabuf` describes it: a descriptor, the caller's. False: this device has none such; it works
  // on. Waits for the device.
  virtual bool Export(uint64_t bytes, std::byte** memory, int* dmabuf) = 0;
  // After everything that uses it. Waits for the device.
  virtual void Unexport(std::byte* memory) = 0;

  // ---- a round ----
  // `stream`: the caller's cudaStream_t, on which `in` is written and `out` is free.
  virtual bool Begin(DeviceRound* round, void* stream) = 0;
  // Aggregates in the group and copies this rank's pieces to host memory, chunk by chunk; Staged
  // follows each. `with_data`: a bit for every member that contributes something.
  virtual bool Contribute(DeviceRound* round, uint64_t with_data) = 0;
  // Copies bytes of a round from `direct` to `contribution`, after Contribute; Fetched follows.
  virtual bool Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes) = 0;
  // Bytes of the result are in host memory. Copies this rank's part to the device; when a chunk is
  // complete it is spread in the group. True in `*complete` when everything has been enqueued.
  virtual bool Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete) = 0;
  // Makes the stream wait until `out` is there; after `*complete`. Any thread.
  virtual bool WaitOn(DeviceRound* round, void* stream) = 0;
  // Frees `state`, in whatever state the round is; what has been enqueued goes on.
  virtual void End(DeviceRound* round) = 0;
};

// The library's one function, by the name kDeviceEntry: an executor for the current device. Null:
// `why` (of `why_bytes`) has one sentence.
using MakeDeviceExecutor = DeviceExecutor* (*)(uint32_t version, DeviceSink* sink, char* why,
                                               size_t why_bytes);
inline constexpr char kDeviceEntry[] = "addend_make_device_executor";

}  // namespace addend::client
