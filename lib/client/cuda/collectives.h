// The collectives among the GPUs of a group: aggregating a chunk, and spreading its result.
//
// Owned by the executor; used by the reader's thread only. All work is enqueued on one stream and
// with one communicator, in the order of the calls, which is the same on all members: so two
// members never wait for each other in different calls. Only Join and the destructor wait for the
// device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "lib/base/types.h"
#include "lib/client/cuda/errors.h"
#include "lib/client/cuda/kernels.h"
#include "lib/client/cuda/nccl_library.h"
#include "lib/client/pieces.h"

namespace addend::client::cuda {

// A chunk of a tensor. Byte counts are of `dtype`.
struct Chunk {
  uint32_t tensor = 0;
  uint64_t index = 0;
  uint64_t elements = 0;  // the elements of the whole tensor
  DType dtype{};
  ReduceOp op{};
};

class Collectives {
 public:
  explicit Collectives(const Errors& errors) : errors_(errors) {}
  // Call Abort first, and let the enqueued work end. The device must be current.
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // All return false with a sentence in Errors::Text(). Join blocks, at most for two minutes: its
  // caller is the thread that would hear that a member has died.
  bool MakeId(char* id);
  bool Join(const ipc::Group& group, const char* id, bool ordered);

  // Aborts enqueued work that waits for other members, which may be dead; completed work is
  // unaffected.
  void Abort();

  const ipc::Group& group() const { return group_; }
  ipc::Piece WholeOf(const Chunk& chunk) const {
    return ipc::ChunkAt(chunk.index, chunk.elements, SizeOf(chunk.dtype));
  }
  ipc::Piece PieceOf(const Chunk& chunk, uint32_t member) const {
    return ipc::PieceOf(group_, chunk.tensor, chunk.index, member, chunk.elements,
                        SizeOf(chunk.dtype));
  }

  // `in`: this member's elements of the chunk, if it contributes; `out`: the aggregate of its
  // piece, if it has a piece. At least one member contributes. Not for a group of a single member.
  bool Aggregate(const Chunk& chunk, uint64_t with_data, const std::byte* in, std::byte* out,
                 cudaStream_t stream);
  // `data`: the chunk, with this member's piece filled in; afterwards the whole chunk is filled in.
  bool Spread(const Chunk& chunk, std::byte* data, cudaStream_t stream);

 private:
  struct Exchange;
  bool Check(ncclResult_t status, const char* call) const;
  bool Connect(const char* id);
  bool AggregateByNccl(const Chunk& chunk, const std::byte* in, std::byte* out,
                       cudaStream_t stream);
  bool AggregateInOrder(const Chunk& chunk, uint64_t with_data, const std::byte* in, std::byte* out,
                        cudaStream_t stream);
  bool ExchangeSlice(const Exchange& exchange, uint64_t begin);
  bool SumSlice(const Exchange& exchange, uint64_t begin);

  const Errors& errors_;
  const NcclLibrary* nccl_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  ipc::Group group_;
  bool ordered_ = true;
  // Data of other members for this member's piece: a slice of each, side by side.
  std::byte* received_ = nullptr;
};

}  // namespace addend::client::cuda
