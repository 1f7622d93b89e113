// A chunk is aggregated by NCCL's own reductions, or in order: slices are exchanged, and a kernel
// sums them in the order of the members. Ordered groups, members without data and the operations
// for which NCCL gives no guarantee need the second method.
#include "lib/client/cuda/collectives.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "lib/client/device.h"

namespace addend::client::cuda {
namespace {

static_assert(kDeviceIdBytes == NCCL_UNIQUE_ID_BYTES);

bool HasBit(uint64_t mask, uint32_t member) { return (mask >> member & 1) != 0; }

// Sizes of the buffer for other members' data. It holds a slice of every member, and a slice is as
// large as any piece of a scattered chunk.
uint64_t SliceBytes(uint32_t contributors, uint32_t members) {
  const uint64_t even = ipc::kChunkBytes / contributors;
  return (even / ipc::kPieceAlignment + 1 + members) * ipc::kPieceAlignment;
}
uint64_t ReceivedBytes(uint32_t members) {
  return ipc::kChunkBytes + uint64_t{members} * (members + 1) * ipc::kPieceAlignment;
}

constexpr auto kJoinLimit = std::chrono::seconds(120);

// State shared with the thread that waits for the other members.
struct Connecting {
  ncclUniqueId id;
  std::mutex mu;
  std::condition_variable done;
  // Guarded by mu.
  bool is_done = false;
  ncclResult_t status = ncclSuccess;
  ncclComm_t communicator = nullptr;
};

ncclDataType_t NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    default:
      return ncclFloat32;
  }
}

ncclRedOp_t NcclOpOf(ReduceOp op) {
  return op == ReduceOp::kMin ? ncclMin : op == ReduceOp::kMax ? ncclMax : ncclSum;
}

// NCCL does not guarantee that a NaN wins in a minimum or maximum; all other code does.
bool NcclHas(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kBroadcast) return false;
  const bool picks = op == ReduceOp::kMin || op == ReduceOp::kMax;
  return !picks || dtype == DType::kInt32 || dtype == DType::kInt64;
}

}  // namespace

// The aggregation of a chunk in the order of the members.
struct Collectives::Exchange {
  const Chunk& chunk;
  uint64_t with_data;
  const std::byte* in;
  std::byte* out;
  cudaStream_t stream;
  uint64_t slice_bytes;
  ipc::Piece whole;

  uint64_t ElementBytes() const { return SizeOf(chunk.dtype); }
  // Returns the bytes of `piece` from `begin` on that are in this slice.
  uint64_t BytesAt(ipc::Piece piece, uint64_t begin) const {
    const uint64_t bytes = piece.elements() * ElementBytes();
    return begin < bytes ? std::min(slice_bytes, bytes - begin) : 0;
  }
  // Returns this member's own data at offset `begin` of `piece`.
  const std::byte* Own(ipc::Piece piece, uint64_t begin) const {
    return in + (piece.begin - whole.begin) * ElementBytes() + begin;
  }
};

Collectives::~Collectives() {
  if (received_ != nullptr) cudaFree(received_);
}

void Collectives::Abort() {
  // Not ncclCommDestroy, which may wait for the other members.
  if (communicator_ != nullptr) nccl_->CommAbort(communicator_);
  communicator_ = nullptr;
}

bool Collectives::Check(ncclResult_t status, const char* call) const {
  if (status == ncclSuccess) return true;
  const char* const more = nccl_->GetLastError(communicator_);
  return errors_.Fail("GPU %s: %s failed: %s%s%s", errors_.gpu().c_str(), call,
                      nccl_->GetErrorString(status), more != nullptr && *more != '\0' ? ": " : "",
                      more != nullptr ? more : "");
}

bool Collectives::MakeId(char* id) {
  std::string why;
  nccl_ = LoadNccl(&why);
  if (nccl_ == nullptr) return errors_.Fail("%s", why.c_str());
  ncclUniqueId made;
  if (!Check(nccl_->GetUniqueId(&made), "ncclGetUniqueId")) return false;
  std::memcpy(id, made.internal, kDeviceIdBytes);
  return true;
}

bool Collectives::Join(const ipc::Group& group, const char* id, bool ordered) {
  if (communicator_ != nullptr) {
    return errors_.Fail("GPU %s has joined a group already", errors_.gpu().c_str());
  }
  const bool sound = group.members >= 1 && group.members <= ipc::kMaxGroup &&
                     group.member < group.members &&
                     (group.scatter || group.members == 1 ||
                      (group.num_roots >= 1 && group.num_roots <= group.members &&
                       std::all_of(group.roots, group.roots + group.num_roots,
                                   [&](uint32_t root) { return root < group.members; })));
  if (!sound) {
    return errors_.Fail("GPU %s was told of a group that is none: member %u of %u, %u roots",
                        errors_.gpu().c_str(), group.member, group.members, group.num_roots);
  }
  group_ = group;
  ordered_ = ordered;
  if (group.members == 1) return true;
  std::string why;
  nccl_ = LoadNccl(&why);
  if (nccl_ == nullptr) return errors_.Fail("%s", why.c_str());
  const uint64_t bytes = ReceivedBytes(group.members);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status != cudaSuccess) {
    return errors_.Fail("%s; wanted were %llu bytes to receive what the other GPUs contribute",
                        errors_.Sentence(status, "cudaMalloc").c_str(),
                        static_cast<unsigned long long>(bytes));
  }
  received_ = static_cast<std::byte*>(memory);
  return Connect(id);
}

bool Collectives::Connect(const char* id) {
  const auto connecting = std::make_shared<Connecting>();
  std::memcpy(connecting->id.internal, id, kDeviceIdBytes);
  int device = 0;
  if (!errors_.Check(cudaGetDevice(&device), "cudaGetDevice")) return false;
  auto thread = std::make_unique<std::thread>([connecting, device, nccl = nccl_,
                                               members = static_cast<int>(group_.members),
                                               member = static_cast<int>(group_.member)] {
    cudaSetDevice(device);
    ncclComm_t made = nullptr;
    const ncclResult_t status = nccl->CommInitRank(&made, members, connecting->id, member);
    const std::lock_guard lock(connecting->mu);
    connecting->communicator = made;
    connecting->status = status;
    connecting->is_done = true;
    connecting->done.notify_all();
  });
  std::unique_lock lock(connecting->mu);
  if (!connecting->done.wait_for(lock, kJoinLimit, [&] { return connecting->is_done; })) {
    // NCCL offers no way to cancel the call. The thread stays until the process ends.
    static_cast<void>(thread.release());
    return errors_.Fail("GPU %s waited %lld s for the other %u GPUs of its group to join by NCCL",
                        errors_.gpu().c_str(), static_cast<long long>(kJoinLimit.count()),
                        group_.members - 1);
  }
  lock.unlock();
  thread->join();
  communicator_ = connecting->status == ncclSuccess ? connecting->communicator : nullptr;
  return Check(connecting->status, "ncclCommInitRank");
}

bool Collectives::Aggregate(const Chunk& chunk, uint64_t with_data, const std::byte* in,
                            std::byte* out, cudaStream_t stream) {
  const uint64_t all = group_.members == 64 ? ~uint64_t{0} : (uint64_t{1} << group_.members) - 1;
  if (!ordered_ && with_data == all && NcclHas(chunk.dtype, chunk.op)) {
    return AggregateByNccl(chunk, in, out, stream);
  }
  return AggregateInOrder(chunk, with_data, in, out, stream);
}

bool Collectives::AggregateByNccl(const Chunk& chunk, const std::byte* in, std::byte* out,
                                  cudaStream_t stream) {
  const uint64_t size = SizeOf(chunk.dtype);
  const ncclDataType_t type = NcclTypeOf(chunk.dtype);
  const ncclRedOp_t op = NcclOpOf(chunk.op);
  const ipc::Piece whole = WholeOf(chunk);
  if (!group_.scatter) {
    const uint32_t root = ipc::RootOf(group_, chunk.tensor, chunk.index);
    return Check(nccl_->Reduce(in, out, whole.elements(), type, op, static_cast<int>(root),
                               communicator_, stream),
                 "ncclReduce");
  }
  const uint32_t last = group_.members - 1;
  const uint64_t each = PieceOf(chunk, 0).elements();
  const uint64_t even = each * group_.members;
  if (each > 0 && !Check(nccl_->ReduceScatter(in, out, each, type, op, communicator_, stream),
                         "ncclReduceScatter")) {
    return false;
  }
  if (whole.elements() == even) return true;
  std::byte* const rest = group_.member == last ? out + each * size : nullptr;
  return Check(nccl_->Reduce(in + even * size, rest, whole.elements() - even, type, op,
                             static_cast<int>(last), communicator_, stream),
               "ncclReduce");
}

bool Collectives::AggregateInOrder(const Chunk& chunk, uint64_t with_data, const std::byte* in,
                                   std::byte* out, cudaStream_t stream) {
  const auto contributors = static_cast<uint32_t>(__builtin_popcountll(with_data));
  if (chunk.op == ReduceOp::kBroadcast && contributors != 1) {
    return errors_.Fail("%u ranks of one node contribute to a broadcast", contributors);
  }
  const Exchange exchange = {
      chunk, with_data, in, out, stream, SliceBytes(contributors, group_.members), WholeOf(chunk)};
  uint64_t longest = 0;
  for (uint32_t member = 0; member < group_.members; ++member) {
    longest = std::max(longest, PieceOf(chunk, member).elements() * SizeOf(chunk.dtype));
  }
  for (uint64_t begin = 0; begin < longest; begin += exchange.slice_bytes) {
    if (!ExchangeSlice(exchange, begin) || !SumSlice(exchange, begin)) return false;
  }
  return true;
}

// A contributing member sends each owner the owner's piece; a single contribution goes directly to
// its target.
bool Collectives::ExchangeSlice(const Exchange& exchange, uint64_t begin) {
  if (!Check(nccl_->GroupStart(), "ncclGroupStart")) return false;
  const uint32_t me = group_.member;
  bool ok = true;
  for (uint32_t owner = 0; owner < group_.members && HasBit(exchange.with_data, me); ++owner) {
    const ipc::Piece piece = PieceOf(exchange.chunk, owner);
    const uint64_t bytes = exchange.BytesAt(piece, begin);
    if (owner == me || bytes == 0) continue;
    ok = ok && Check(nccl_->Send(exchange.Own(piece, begin), bytes, ncclInt8,
                                 static_cast<int>(owner), communicator_, exchange.stream),
                     "ncclSend");
  }
  const uint64_t bytes = exchange.BytesAt(PieceOf(exchange.chunk, me), begin);
  const bool single = __builtin_popcountll(exchange.with_data) == 1;
  std::byte* to = single ? exchange.out + begin : received_;
  for (uint32_t from = 0; from < group_.members && bytes > 0; ++from) {
    if (from == me || !HasBit(exchange.with_data, from)) continue;
    ok = ok && Check(nccl_->Recv(to, bytes, ncclInt8, static_cast<int>(from), communicator_,
                                 exchange.stream),
                     "ncclRecv");
    to += exchange.slice_bytes;
  }
  // Even after a failure: NCCL must not stay within a group.
  const ncclResult_t status = nccl_->GroupEnd();
  return ok && Check(status, "ncclGroupEnd");
}

bool Collectives::SumSlice(const Exchange& exchange, uint64_t begin) {
  const uint32_t me = group_.member;
  const ipc::Piece piece = PieceOf(exchange.chunk, me);
  const uint64_t bytes = exchange.BytesAt(piece, begin);
  if (bytes == 0) return true;
  if (__builtin_popcountll(exchange.with_data) == 1) {
    if (!HasBit(exchange.with_data, me)) return true;  // received in `out`
    return errors_.Check(cudaMemcpyAsync(exchange.out + begin, exchange.Own(piece, begin), bytes,
                                         cudaMemcpyDeviceToDevice, exchange.stream),
                         "cudaMemcpyAsync within the device");
  }
  SumInputs inputs;
  const std::byte* from = received_;
  for (uint32_t member = 0; member < group_.members; ++member) {
    if (!HasBit(exchange.with_data, member)) continue;
    if (member == me) {
      inputs.at[inputs.count++] = exchange.Own(piece, begin);
    } else {
      inputs.at[inputs.count++] = from;
      from += exchange.slice_bytes;
    }
  }
  return errors_.Check(OrderedSum(exchange.chunk.dtype, exchange.chunk.op, exchange.out + begin,
                                  inputs, bytes / exchange.ElementBytes(), exchange.stream),
                       "the kernel that sums");
}

bool Collectives::Spread(const Chunk& chunk, std::byte* data, cudaStream_t stream) {
  const uint64_t size = SizeOf(chunk.dtype);
  const uint64_t bytes = WholeOf(chunk).elements() * size;
  if (!group_.scatter) {
    const uint32_t root = ipc::RootOf(group_, chunk.tensor, chunk.index);
    return Check(nccl_->Broadcast(data, data, bytes, ncclInt8, static_cast<int>(root),
                                  communicator_, stream),
                 "ncclBroadcast");
  }
  const uint32_t last = group_.members - 1;
  const uint64_t each = PieceOf(chunk, 0).elements() * size;
  const uint64_t even = each * group_.members;
  if (each > 0 && !Check(nccl_->AllGather(data + group_.member * each, data, each, ncclInt8,
                                          communicator_, stream),
                         "ncclAllGather")) {
    return false;
  }
  if (bytes == even) return true;
  return Check(nccl_->Broadcast(data + even, data + even, bytes - even, ncclInt8,
                                static_cast<int>(last), communicator_, stream),
               "ncclBroadcast");
}

}  // namespace addend::client::cuda
