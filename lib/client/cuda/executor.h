// Drives one GPU with the CUDA runtime. lib/client/device.h defines its tasks.
//
// Owned by libaddend. Begin and WaitOn: any thread; Join, Contribute, Fetch and Arrived: one
// thread, the reader's; Map, Unmap, Export, Unexport and End: any thread. Streams, all of one
// device, separate from the caller's:
//   collective  aggregates, spreads, converts; the only stream that NCCL uses
//   down        copies pieces to host memory, or to memory that a NIC reads
//   fetch       copies memory that a NIC reads to host memory, beside the work that waits for
//               callers' streams
//   up          copies results to the device
// The streams wait for each other by events; an EventWatch calls the sink when copies are complete.
// Only Join, Unmap, Export, Unexport and the destructor
// wait for the device, and after the first rounds no device memory is allocated and no event
// created. (Memory that Map could not pin is copied within the call: then Contribute and Arrived
// take as long as their copies.)
//
// Invariants:
//  1. A round's first work waits for the caller's stream (Begin) and for the tensor's former round:
//     so Staged also means that the copies out of the former round's result slot are over.
//  2. Results of a chunk in which this rank has a piece arrive only after the rank has reported the
//     piece as staged: so `up` may write to `out` over `in`, without waiting for readers of `in`.
//  3. If the caller's type is wider than the type in host memory, a chunk's result lies in the
//     upper half of its range in `out` until it is complete: any number of chunks may be
//     incomplete.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/client/cuda/collectives.h"
#include "lib/client/cuda/errors.h"
#include "lib/client/cuda/event_watch.h"
#include "lib/client/cuda/events.h"
#include "lib/client/device.h"

namespace addend::client::cuda {

class Executor final : public DeviceExecutor {
 public:
  // Makes an executor for the current device. Returns null on failure: Errors::Text() has the
  // reason.
  static std::unique_ptr<Executor> Make(DeviceSink* sink);
  ~Executor() override;

  const char* bus_id() const override { return errors_.gpu().c_str(); }
  const char* Error() const override { return Errors::Text(); }
  bool MakeId(char* id) override;
  bool Join(const ipc::Group& group, const char* id, bool ordered) override;
  void Map(void* memory, size_t bytes, bool read_only) override;
  void Unmap(void* memory) override;
  bool Export(uint64_t bytes, std::byte** memory, int* dmabuf) override;
  void Unexport(std::byte* memory) override;
  bool Begin(DeviceRound* round, void* stream) override;
  bool Contribute(DeviceRound* round, uint64_t with_data) override;
  bool Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes) override;
  bool Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete) override;
  bool WaitOn(DeviceRound* round, void* stream) override;
  void End(DeviceRound* round) override;

 private:
  // The type of DeviceRound::state.
  struct State {
    Event begun;  // records the position of the caller's stream
    Event done;   // guarded by mu_; null until the round is complete
    // Used by the reader: the missing bytes of each chunk, and the number of incomplete chunks.
    std::vector<uint64_t> missing;
    uint64_t incomplete = 0;
    bool arrived = false;       // some bytes have arrived
    std::vector<Event> staged;  // by chunk
  };
  // A buffer for a piece on its way to host memory. Slots are used in rotation.
  struct Slot {
    std::byte* memory = nullptr;
    Event copied;
  };
  static constexpr size_t kSlots = 4;

  Executor(DeviceSink* sink, int device, std::string gpu);
  bool Open();

  bool IsAlone() const { return collectives_->group().members == 1; }

  bool Record(const Event& event, cudaStream_t stream);
  bool Wait(cudaStream_t stream, const Event& event);
  bool After(cudaStream_t later, cudaStream_t earlier);
  bool Allocate(std::byte** memory, uint64_t bytes, const char* what);
  bool ReserveConversion();
  bool ReserveSlots();
  bool Follow(const DeviceRound& round, State* state, cudaStream_t stream);

  bool ContributeChunk(const DeviceRound& round, const Chunk& chunk, uint64_t with_data);
  bool ContributeAlone(const DeviceRound& round, const Chunk& chunk);
  bool ContributeInGroup(const DeviceRound& round, const Chunk& chunk, uint64_t with_data);
  bool TakeSlot(Slot** slot);
  bool CopyFromSlot(const DeviceRound& round, const Chunk& chunk, ipc::Piece piece,
                    const Slot& slot);
  bool CopyDown(const DeviceRound& round, uint64_t offset, const void* from, uint64_t bytes);
  bool TellStaged(const DeviceRound& round, uint64_t chunk, cudaStream_t after, uint64_t bytes);

  std::byte* LandingOf(const DeviceRound& round, const Chunk& chunk) const;
  bool CopyUp(const DeviceRound& round, const Chunk& chunk, uint64_t begin, uint64_t end);
  bool Land(const DeviceRound& round, const Chunk& chunk);
  bool Complete(const DeviceRound& round, State* state);

  // Constant after Open. The members are in the order of construction; destroyed in reverse.
  const int device_;
  const Errors errors_;
  DeviceSink* const sink_;  // called by watch_ only
  EventPool events_;
  std::unique_ptr<EventWatch> watch_;
  std::unique_ptr<Collectives> collectives_;
  cudaStream_t collective_ = nullptr;
  cudaStream_t down_ = nullptr;
  cudaStream_t fetch_ = nullptr;
  cudaStream_t up_ = nullptr;
  Event between_;  // for waits that are enqueued right after the record

  // Used by the reader.
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  // A chunk in the type of host memory, before aggregation, and its result before conversion.
  std::byte* narrow_in_ = nullptr;
  std::byte* narrow_out_ = nullptr;
  std::unordered_map<uint32_t, Event> last_;  // by tensor: its last complete round

  std::mutex mu_;
  // Guarded by mu_.
  std::vector<std::unique_ptr<State>> free_states_;
  std::unordered_map<void*, bool> mapped_;  // address -> whether it is pinned
  bool said_unpinned_ = false;
};

}  // namespace addend::client::cuda
