// The steps of a round: Begin, Contribute, Arrived, WaitOn, End.
#include <algorithm>

#include "lib/client/cuda/device_guard.h"
#include "lib/client/cuda/executor.h"

namespace addend::client::cuda {

namespace {

bool IsConverted(const DeviceRound& round) { return round.dtype != round.caller_dtype; }

Chunk ChunkOf(const DeviceRound& round, uint64_t index) {
  return {round.tensor, index, round.elements, round.dtype, round.op};
}

}  // namespace

bool Executor::Record(const Event& event, cudaStream_t stream) {
  return errors_.Check(cudaEventRecord(event.get(), stream), "cudaEventRecord");
}

bool Executor::Wait(cudaStream_t stream, const Event& event) {
  return errors_.Check(cudaStreamWaitEvent(stream, event.get(), 0), "cudaStreamWaitEvent");
}

// Work enqueued to `later` from now on waits for the present work of `earlier`.
bool Executor::After(cudaStream_t later, cudaStream_t earlier) {
  return Record(between_, earlier) && Wait(later, between_);
}

bool Executor::Begin(DeviceRound* round, void* stream) {
  const DeviceGuard guard(device_);
  const auto caller = static_cast<cudaStream_t>(stream);
  if (IsConverted(*round) &&
      (round->caller_dtype != DType::kFloat32 || !CanConvert(round->caller_dtype, round->dtype))) {
    return errors_.Fail("GPU %s sends float32 as float16 or bfloat16, but not %s as %s", bus_id(),
                        Name(round->caller_dtype).data(), Name(round->dtype).data());
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (!errors_.Check(cudaStreamIsCapturing(caller, &capture), "cudaStreamIsCapturing")) {
    return false;
  }
  if (capture != cudaStreamCaptureStatusNone) {
    return errors_.Fail(
        "a push-pull cannot be part of a CUDA graph, and the caller's stream is being captured");
  }
  std::unique_ptr<State> state;
  {
    const std::lock_guard lock(mu_);
    if (!free_states_.empty()) {
      state = std::move(free_states_.back());
      free_states_.pop_back();
    }
  }
  if (state == nullptr) state = std::make_unique<State>();
  state->begun = events_.Take();
  if (state->begun == nullptr || !Record(state->begun, caller)) return false;
  const uint64_t size = SizeOf(round->dtype);
  state->incomplete = ipc::Chunks(round->elements, size);
  state->missing.resize(state->incomplete);
  for (uint64_t i = 0; i < state->incomplete; ++i) {
    state->missing[i] = ipc::ChunkAt(i, round->elements, size).elements() * size;
  }
  state->arrived = false;
  // Here and not when a chunk is staged: the number of events then does not depend on how many
  // chunks are under way at the same time.
  state->staged.resize(std::max<uint64_t>(1, state->incomplete));
  for (Event& staged : state->staged) {
    staged = events_.Take();
    if (staged == nullptr) return false;
  }
  round->state = state.release();
  return true;
}

// Precedes a round's first work on this stream.
bool Executor::Follow(const DeviceRound& round, State* state, cudaStream_t stream) {
  if (!Wait(stream, state->begun)) return false;
  const auto last = last_.find(round.tensor);
  return last == last_.end() || Wait(stream, last->second);
}

bool Executor::Contribute(DeviceRound* round, uint64_t with_data) {
  const DeviceGuard guard(device_);
  auto* const state = static_cast<State*>(round->state);
  const bool said = (with_data >> collectives_->group().member & 1) != 0;
  if (!IsAlone() && round->elements > 0 && said != (round->in != nullptr)) {
    return errors_.Fail("GPU %s has %s for a round, and the agent says otherwise", bus_id(),
                        round->in != nullptr ? "data" : "no data");
  }
  const bool slots = !IsAlone() || IsConverted(*round);
  if (slots && !ReserveSlots()) return false;
  if (IsConverted(*round) && !ReserveConversion()) return false;
  if (slots && !Follow(*round, state, collective_)) return false;
  if (!Follow(*round, state, down_)) return false;
  if (round->direct != nullptr && !After(down_, fetch_)) return false;
  const uint64_t chunks = state->incomplete;
  for (uint64_t i = 0; i < chunks; ++i) {
    if (!ContributeChunk(*round, ChunkOf(*round, i), with_data)) return false;
  }
  return chunks > 0 || TellStaged(*round, 0, down_, 0);
}

bool Executor::ContributeChunk(const DeviceRound& round, const Chunk& chunk, uint64_t with_data) {
  if (IsAlone() ? round.in == nullptr : with_data == 0) {
    const uint64_t end = collectives_->WholeOf(chunk).end * SizeOf(round.dtype);
    return TellStaged(round, chunk.index, down_, end);
  }
  return IsAlone() ? ContributeAlone(round, chunk) : ContributeInGroup(round, chunk, with_data);
}

bool Executor::ContributeAlone(const DeviceRound& round, const Chunk& chunk) {
  const uint64_t size = SizeOf(round.dtype);
  const ipc::Piece whole = collectives_->WholeOf(chunk);
  const auto* const in =
      static_cast<const std::byte*>(round.in) + whole.begin * SizeOf(round.caller_dtype);
  if (!IsConverted(round)) {
    return CopyDown(round, whole.begin * size, in, whole.elements() * size) &&
           TellStaged(round, chunk.index, down_, whole.end * size);
  }
  Slot* slot = nullptr;
  return TakeSlot(&slot) &&
         errors_.Check(Convert(round.caller_dtype, in, round.dtype, slot->memory, whole.elements(),
                               collective_),
                       "the kernel that converts") &&
         CopyFromSlot(round, chunk, whole, *slot);
}

bool Executor::ContributeInGroup(const DeviceRound& round, const Chunk& chunk, uint64_t with_data) {
  const ipc::Piece whole = collectives_->WholeOf(chunk);
  const ipc::Piece piece = collectives_->PieceOf(chunk, collectives_->group().member);
  const auto* in = static_cast<const std::byte*>(round.in);
  if (in != nullptr) in += whole.begin * SizeOf(round.caller_dtype);
  if (in != nullptr && IsConverted(round)) {
    if (!errors_.Check(
            Convert(round.caller_dtype, in, round.dtype, narrow_in_, whole.elements(), collective_),
            "the kernel that converts")) {
      return false;
    }
    in = narrow_in_;
  }
  if (piece.elements() == 0) {
    return collectives_->Aggregate(chunk, with_data, in, nullptr, collective_) &&
           TellStaged(round, chunk.index, collective_, whole.end * SizeOf(round.dtype));
  }
  Slot* slot = nullptr;
  return TakeSlot(&slot) &&
         collectives_->Aggregate(chunk, with_data, in, slot->memory, collective_) &&
         CopyFromSlot(round, chunk, piece, *slot);
}

// After this the collective stream may write to the slot.
bool Executor::TakeSlot(Slot** slot) {
  *slot = &slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % kSlots;
  return Wait(collective_, (*slot)->copied);
}

bool Executor::CopyFromSlot(const DeviceRound& round, const Chunk& chunk, ipc::Piece piece,
                            const Slot& slot) {
  const uint64_t size = SizeOf(round.dtype);
  return After(down_, collective_) &&
         CopyDown(round, piece.begin * size, slot.memory, piece.elements() * size) &&
         Record(slot.copied, down_) &&
         TellStaged(round, chunk.index, down_, collectives_->WholeOf(chunk).end * size);
}

// Copies to the memory from which the contribution is read: by the agent from host memory, or by a
// NIC from the device.
bool Executor::CopyDown(const DeviceRound& round, uint64_t offset, const void* from,
                        uint64_t bytes) {
  if (round.direct != nullptr) {
    return errors_.Check(
        cudaMemcpyAsync(round.direct + offset, from, bytes, cudaMemcpyDeviceToDevice, down_),
        "cudaMemcpyAsync within the device");
  }
  return errors_.Check(
      cudaMemcpyAsync(round.contribution + offset, from, bytes, cudaMemcpyDeviceToHost, down_),
      "cudaMemcpyAsync to host memory");
}

bool Executor::Fetch(DeviceRound* round, uint64_t offset, uint64_t bytes) {
  const DeviceGuard guard(device_);
  const Event copied = events_.Take();
  if (copied == nullptr ||
      !errors_.Check(cudaMemcpyAsync(round->contribution + offset, round->direct + offset, bytes,
                                     cudaMemcpyDeviceToHost, fetch_),
                     "cudaMemcpyAsync to host memory") ||
      !Record(copied, fetch_)) {
    return false;
  }
  watch_->Add(EventWatch::kFetched, copied,
              [sink = sink_, tensor = round->tensor, number = round->number, offset, bytes] {
                sink->Fetched(tensor, number, offset, bytes);
              });
  return true;
}

// `after`: the last stream that works on the chunk. `bytes`: of the whole contribution, up to the
// chunk's end.
bool Executor::TellStaged(const DeviceRound& round, uint64_t chunk, cudaStream_t after,
                          uint64_t bytes) {
  const Event& staged = static_cast<State*>(round.state)->staged[chunk];
  if (!Record(staged, after)) return false;
  watch_->Add(EventWatch::kStaged, staged,
              [sink = sink_, id = round.id, bytes] { sink->Staged(id, bytes); });
  return true;
}

// The address of a chunk's result until the chunk is complete.
std::byte* Executor::LandingOf(const DeviceRound& round, const Chunk& chunk) const {
  const ipc::Piece whole = collectives_->WholeOf(chunk);
  const uint64_t wide = SizeOf(round.caller_dtype);
  const uint64_t end = whole.end * wide;
  return static_cast<std::byte*>(round.out) + end - whole.elements() * SizeOf(round.dtype);
}

bool Executor::Arrived(DeviceRound* round, uint64_t offset, uint64_t bytes, bool* complete) {
  *complete = false;
  const DeviceGuard guard(device_);
  auto* const state = static_cast<State*>(round->state);
  const uint64_t total = round->elements * SizeOf(round->dtype);
  if (offset > total || bytes > total - offset) {
    return errors_.Fail("the agent told of bytes %llu to %llu of a result of %llu bytes",
                        static_cast<unsigned long long>(offset),
                        static_cast<unsigned long long>(offset + bytes),
                        static_cast<unsigned long long>(total));
  }
  if (!state->arrived && !Wait(up_, state->begun)) return false;
  state->arrived = true;
  for (const uint64_t end = offset + bytes; offset < end;) {
    const uint64_t index = offset / ipc::kChunkBytes;
    const uint64_t part_end = std::min(end, (index + 1) * ipc::kChunkBytes);
    const Chunk chunk = ChunkOf(*round, index);
    if (part_end - offset > state->missing[index]) {
      return errors_.Fail("the agent told twice of byte %llu of a result or of one near it",
                          static_cast<unsigned long long>(offset));
    }
    if (!CopyUp(*round, chunk, offset, part_end)) return false;
    state->missing[index] -= part_end - offset;
    if (state->missing[index] == 0) {
      if (!Land(*round, chunk)) return false;
      --state->incomplete;
    }
    offset = part_end;
  }
  *complete = state->incomplete == 0;
  return !*complete || Complete(*round, state);
}

// Copies this member's part of these bytes of the tensor.
bool Executor::CopyUp(const DeviceRound& round, const Chunk& chunk, uint64_t begin, uint64_t end) {
  const uint64_t size = SizeOf(round.dtype);
  const ipc::Piece piece = collectives_->PieceOf(chunk, collectives_->group().member);
  begin = std::max(begin, piece.begin * size);
  end = std::min(end, piece.end * size);
  if (begin >= end) return true;
  const uint64_t chunk_begin = chunk.index * ipc::kChunkBytes;
  return errors_.Check(
      cudaMemcpyAsync(LandingOf(round, chunk) + (begin - chunk_begin), round.result + begin,
                      end - begin, cudaMemcpyHostToDevice, up_),
      "cudaMemcpyAsync to the device");
}

// Called when the whole chunk is on the devices of the group.
bool Executor::Land(const DeviceRound& round, const Chunk& chunk) {
  std::byte* const landing = LandingOf(round, chunk);
  cudaStream_t stream = up_;
  if (!IsAlone()) {
    stream = collective_;
    if (!After(stream, up_) || !collectives_->Spread(chunk, landing, stream)) return false;
  }
  if (!IsConverted(round)) return true;
  // A GPU's threads run in no fixed order, so they cannot widen in place.
  const ipc::Piece whole = collectives_->WholeOf(chunk);
  return errors_.Check(cudaMemcpyAsync(narrow_out_, landing, whole.elements() * SizeOf(round.dtype),
                                       cudaMemcpyDeviceToDevice, stream),
                       "cudaMemcpyAsync within the device") &&
         errors_.Check(
             Convert(round.dtype, narrow_out_, round.caller_dtype,
                     static_cast<std::byte*>(round.out) + whole.begin * SizeOf(round.caller_dtype),
                     whole.elements(), stream),
             "the kernel that converts");
}

bool Executor::Complete(const DeviceRound& round, State* state) {
  const Event done = events_.Take();
  if (done == nullptr || !Record(done, IsAlone() ? up_ : collective_)) return false;
  last_[round.tensor] = done;
  state->staged.clear();  // all have been reached; the caller may keep the round for long
  const std::lock_guard lock(mu_);
  state->done = done;
  return true;
}

bool Executor::WaitOn(DeviceRound* round, void* stream) {
  const DeviceGuard guard(device_);
  Event done;
  {
    const std::lock_guard lock(mu_);
    done = static_cast<State*>(round->state)->done;
  }
  if (done == nullptr) return errors_.Fail("the round's result is not on its way to the device");
  return Wait(static_cast<cudaStream_t>(stream), done);
}

void Executor::End(DeviceRound* round) {
  std::unique_ptr<State> state(static_cast<State*>(round->state));
  round->state = nullptr;
  if (state == nullptr) return;
  state->begun.reset();
  state->staged.clear();
  const std::lock_guard lock(mu_);
  state->done.reset();
  free_states_.push_back(std::move(state));
}

}  // namespace addend::client::cuda
