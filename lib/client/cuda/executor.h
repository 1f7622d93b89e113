// Drives one GPU with the CUDA runtime. See lib/client/device.h for what is asked of it.
//
// Owned by libaddend. Begin and WaitOn: any thread; Join, Contribute, Fetch and Arrived: one
// thread, the reader's; Map, Unmap, Export, Unexport and End: any thread. Streams, all of one
// device, none of them the caller's:
//   collective  aggregates, spreads, converts; the only one that NCCL is used on
//   down        copies pieces to host memory, or to where a NIC reads them
//   told        waits for those copies and calls Staged, so that no copy waits for a callback
//   fetch       copies what a NIC reads to host memory, beside all that waits for callers' streams
//   up          copies results to the device
// They wait for each other by events. Nothing waits for the device but Unmap and the destructor,
// and after the first rounds nothing is allocated on it and no event created. (Memory that Map
// could not pin is copied within the call: then Contribute and Arrived take as long as their
// copies.)
//
// Invariants:
//  1. A round's first work waits for the caller's stream (Begin) and for the tensor's former round:
//     so Staged says also that the copies out of the former round's result slot are over.
//  2. Of what this rank has a piece of, results come only after it was told as staged: so `up` may
//     write to `out` where `in` was, and waits for nothing that reads it.
//  3. Where `in` and `out` are wider than what lies in host memory, a chunk's result lies in the
//     upper half of its place in `out` until it is complete: any number may be incomplete.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/client/cuda/collectives.h"
#include "lib/client/cuda/errors.h"
#include "lib/client/cuda/events.h"
#include "lib/client/device.h"

namespace addend::client::cuda {

// Speaks to the sink, once of a failure and not of anything after it. Outlives the executor in the
// callbacks that CUDA still owes.
class Teller {
 public:
  Teller(DeviceSink* sink, const Errors& errors) : errors_(errors), sink_(sink) {}
  void Staged(uint64_t round, uint64_t bytes);
  void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes);
  void Failed(cudaError_t status);
  // Afterwards the sink is not called.
  void Silence();

 private:
  const Errors errors_;
  std::mutex mu_;
  DeviceSink* sink_;  // guarded by mu_; null once nothing must be said any more
};

class Executor final : public DeviceExecutor {
 public:
  // For the current device. Null: Errors::Text() has the reason.
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
  // DeviceRound::state.
  struct State {
    Event begun;  // the caller's stream was here
    Event done;   // guarded by mu_; null until the round is complete
    // The reader's: bytes of each chunk that have not arrived, and chunks that lack any.
    std::vector<uint64_t> missing;
    uint64_t incomplete = 0;
    bool arrived = false;  // something has
  };
  // A piece on its way to host memory. Used in turn.
  struct Slot {
    std::byte* memory = nullptr;
    Event copied;
  };
  // What a callback needs, and says unless the device has failed; deleted by it.
  struct Note {
    std::shared_ptr<Teller> teller;
    std::function<void(Teller*)> say;
  };
  static constexpr size_t kSlots = 4;

  Executor(DeviceSink* sink, int device, std::string gpu);
  bool Open();
  static void OnReached(cudaStream_t stream, cudaError_t status, void* note);

  bool IsAlone() const { return collectives_->group().members == 1; }
  static bool IsConverted(const DeviceRound& round) { return round.dtype != round.caller_dtype; }
  static Chunk ChunkOf(const DeviceRound& round, uint64_t index);

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
  bool TellStaged(const DeviceRound& round, cudaStream_t after, uint64_t bytes);
  bool Tell(cudaStream_t stream, std::function<void(Teller*)> say);

  std::byte* LandingOf(const DeviceRound& round, const Chunk& chunk) const;
  bool CopyUp(const DeviceRound& round, const Chunk& chunk, uint64_t begin, uint64_t end);
  bool Land(const DeviceRound& round, const Chunk& chunk);
  bool Complete(const DeviceRound& round, State* state);

  // Constant after Open. In the order in which they may be made; destroyed in the reverse one.
  const int device_;
  const Errors errors_;
  const std::shared_ptr<Teller> teller_;
  EventPool events_;
  std::unique_ptr<Collectives> collectives_;
  cudaStream_t collective_ = nullptr;
  cudaStream_t down_ = nullptr;
  cudaStream_t told_ = nullptr;
  cudaStream_t fetch_ = nullptr;
  cudaStream_t up_ = nullptr;
  Event between_;  // records that streams are told to wait for at once

  // The reader's.
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  // A chunk in the type of host memory, before it is aggregated, and its result before conversion.
  std::byte* narrow_in_ = nullptr;
  std::byte* narrow_out_ = nullptr;
  std::unordered_map<uint32_t, Event> last_;  // by tensor: its last complete round

  std::mutex mu_;
  // Guarded by mu_.
  std::vector<std::unique_ptr<State>> free_states_;
  std::unordered_map<void*, bool> mapped_;  // whether it is pinned
  bool said_unpinned_ = false;
};

}  // namespace addend::client::cuda
