// NCCL on the host: ranks of a machine meet in a file of /dev/shm; all calls are sends and receives
// through that file, in the stream's thread.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/client/cuda/nccl_library.h"
#include "tests/support/emulated_cuda/emulated.h"

namespace addend::emulated {
namespace {

constexpr int kMaxRanks = 8;
constexpr size_t kRingBytes = 256 << 10;
constexpr auto kPatience = std::chrono::seconds(60);

using SteadyClock = std::chrono::steady_clock;

// Data from a rank to another. A new file is all zeros.
struct Ring {
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  char bytes[kRingBytes];
};
struct Meeting {
  std::atomic<uint32_t> joined;
  Ring rings[kMaxRanks][kMaxRanks];  // [from][to]
};

void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace

// Kept alive by enqueued work, even after the communicator was aborted.
struct Session {
  Meeting* meeting = nullptr;
  int rank = 0;
  int ranks = 0;
  std::atomic<bool> aborted{false};

  ~Session() {
    if (meeting != nullptr) munmap(meeting, sizeof(Meeting));
  }
};

namespace {

struct Transfer {
  bool is_send;
  int peer;
  char* data;
  size_t bytes;
  size_t moved = 0;

  bool IsDone() const { return moved == bytes; }
};

// A call of NCCL: its transfers, and the function that runs after them.
struct Call {
  std::vector<Transfer> transfers;
  std::shared_ptr<std::vector<std::vector<char>>> scratch;
  std::function<void()> finish;
};

// Returns whether any byte moved.
bool Move(Session& session, Transfer& transfer) {
  Ring& ring = transfer.is_send ? session.meeting->rings[session.rank][transfer.peer]
                                : session.meeting->rings[transfer.peer][session.rank];
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const uint64_t read = ring.read.load(std::memory_order_acquire);
  const uint64_t at = (transfer.is_send ? written : read) % kRingBytes;
  const uint64_t room = transfer.is_send ? kRingBytes - (written - read) : written - read;
  const uint64_t bytes =
      std::min<uint64_t>({room, kRingBytes - at, transfer.bytes - transfer.moved});
  if (bytes == 0) return false;
  char* const data = transfer.data + transfer.moved;
  if (transfer.is_send) {
    std::memcpy(ring.bytes + at, data, bytes);
    ring.written.store(written + bytes, std::memory_order_release);
  } else {
    std::memcpy(data, ring.bytes + at, bytes);
    ring.read.store(read + bytes, std::memory_order_release);
  }
  transfer.moved += bytes;
  return true;
}

// Tries every transfer once; transfers between two ranks keep their order.
bool MoveAll(Session& session, std::vector<Transfer>& transfers, bool* done) {
  bool moved = false;
  bool busy[2][kMaxRanks] = {};
  *done = true;
  for (Transfer& transfer : transfers) {
    if (transfer.IsDone() || busy[transfer.is_send][transfer.peer]) continue;
    while (!transfer.IsDone() && Move(session, transfer)) moved = true;
    busy[transfer.is_send][transfer.peer] = !transfer.IsDone();
    *done = *done && transfer.IsDone();
  }
  return moved;
}

void Run(Session& session, std::vector<Call>& calls) {
  std::vector<Transfer> transfers;
  for (Call& call : calls) {
    transfers.insert(transfers.end(), call.transfers.begin(), call.transfers.end());
  }
  auto last_move = SteadyClock::now();
  for (bool done = false; !done;) {
    if (session.aborted || HasFailed()) return;
    if (MoveAll(session, transfers, &done)) {
      last_move = SteadyClock::now();
    } else if (!done) {
      if (SteadyClock::now() - last_move > kPatience) {
        std::fprintf(stderr, "emulated NCCL: rank %d waited a minute for the others\n",
                     session.rank);
        return FailNow();
      }
      Pause();
    }
  }
  for (Call& call : calls) {
    if (call.finish != nullptr) call.finish();
  }
}

struct Pending {
  std::shared_ptr<Session> session;
  cudaStream_t stream;
  std::vector<Call> calls;
};
thread_local int group_depth = 0;
thread_local Pending pending;

void Start(Pending started) {
  auto calls = std::make_shared<std::vector<Call>>(std::move(started.calls));
  Enqueue(started.stream, [session = std::move(started.session), calls] { Run(*session, *calls); });
}

size_t SizeOfType(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

DType DTypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return DType::kFloat16;
    case ncclBfloat16:
      return DType::kBFloat16;
    case ncclFloat64:
      return DType::kFloat64;
    case ncclInt32:
      return DType::kInt32;
    case ncclInt64:
      return DType::kInt64;
    default:
      return DType::kFloat32;
  }
}

ReduceOp ReduceOpOf(ncclRedOp_t op) {
  return op == ncclMin ? ReduceOp::kMin : op == ncclMax ? ReduceOp::kMax : ReduceOp::kSum;
}

// Receives all ranks' data and sums it from the last rank to the first: the reverse of the
// executor's order, so that a test notices the order in use.
void ReceiveAndSum(const Session& session, Call* call, const void* own, void* to, size_t count,
                   ncclDataType_t type, ncclRedOp_t op) {
  const size_t bytes = count * SizeOfType(type);
  call->scratch = std::make_shared<std::vector<std::vector<char>>>(session.ranks);
  client::cuda::SumInputs inputs;
  for (int rank = session.ranks - 1; rank >= 0; --rank) {
    const void* input = own;
    if (rank != session.rank) {
      std::vector<char>& received = (*call->scratch)[rank];
      received.resize(bytes);
      call->transfers.push_back({false, rank, received.data(), bytes});
      input = received.data();
    }
    inputs.at[inputs.count++] = input;
  }
  call->finish = [scratch = call->scratch, inputs, to, count, type, op] {
    SumOnHost(DTypeOf(type), ReduceOpOf(op), to, inputs, count);
  };
}

}  // namespace
}  // namespace addend::emulated

struct ncclComm {
  std::shared_ptr<addend::emulated::Session> session;
};

namespace addend::emulated {
namespace {

ncclResult_t Add(ncclComm_t communicator, cudaStream_t stream, Call call) {
  if (HasFailed()) return ncclUnhandledCudaError;
  if (group_depth == 0) {
    Start({communicator->session, stream, {std::move(call)}});
    return ncclSuccess;
  }
  if (pending.session != nullptr &&
      (pending.session != communicator->session || pending.stream != stream)) {
    return ncclInvalidUsage;  // the executor has a single communicator and stream
  }
  pending.session = communicator->session;
  pending.stream = stream;
  pending.calls.push_back(std::move(call));
  return ncclSuccess;
}

Transfer SendOf(const void* from, size_t bytes, int peer) {
  return {true, peer, static_cast<char*>(const_cast<void*>(from)), bytes};
}

bool AwaitAll(const Meeting& meeting, uint32_t ranks) {
  const auto deadline = SteadyClock::now() + kPatience;
  while (meeting.joined < ranks) {
    if (SteadyClock::now() > deadline) return false;
    Pause();
  }
  return true;
}

}  // namespace
}  // namespace addend::emulated

using addend::emulated::Add;
using addend::emulated::Call;
using addend::emulated::group_depth;
using addend::emulated::Meeting;
using addend::emulated::pending;
using addend::emulated::ReceiveAndSum;
using addend::emulated::SendOf;
using addend::emulated::Session;
using addend::emulated::SizeOfType;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof(id->internal), "/addend-emulated-nccl-%d-%08x%08x",
                static_cast<int>(getpid()), random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  if (ranks < 1 || ranks > addend::emulated::kMaxRanks || rank < 0 || rank >= ranks) {
    return ncclInvalidArgument;
  }
  const int fd = shm_open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ncclSystemError;
  const bool sized = ftruncate(fd, sizeof(Meeting)) == 0;
  void* const memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (!sized || memory == MAP_FAILED) return ncclSystemError;
  auto session = std::make_shared<Session>();
  session->meeting = static_cast<Meeting*>(memory);
  session->rank = rank;
  session->ranks = ranks;
  session->meeting->joined.fetch_add(1);
  const bool all = addend::emulated::AwaitAll(*session->meeting, static_cast<uint32_t>(ranks));
  if (rank == 0) shm_unlink(id.internal);
  if (!all) return ncclSystemError;
  *communicator = new ncclComm{std::move(session)};
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->session->aborted = true;
  delete communicator;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclUnhandledCudaError ? "unhandled cuda error" : "emulated error";
}

const char* ncclGetLastError(ncclComm_t /*communicator*/) { return ""; }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  addend::emulated::Pending started = std::move(pending);
  pending = {};
  if (started.session != nullptr) addend::emulated::Start(std::move(started));
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  Call call;
  call.transfers.push_back(SendOf(from, count * SizeOfType(type), peer));
  return Add(communicator, stream, std::move(call));
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  Call call;
  call.transfers.push_back({false, peer, static_cast<char*>(to), count * SizeOfType(type)});
  return Add(communicator, stream, std::move(call));
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  const Session& session = *communicator->session;
  const size_t bytes = count * SizeOfType(type);
  if (session.rank != root) return ncclRecv(to, count, type, root, communicator, stream);
  Call call;
  for (int rank = 0; rank < session.ranks; ++rank) {
    if (rank != root) call.transfers.push_back(SendOf(from, bytes, rank));
  }
  call.finish = [=] { std::memmove(to, from, bytes); };
  return Add(communicator, stream, std::move(call));
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const Session& session = *communicator->session;
  const size_t bytes = count * SizeOfType(type);
  Call call;
  for (int rank = 0; rank < session.ranks; ++rank) {
    if (rank == session.rank) continue;
    call.transfers.push_back(SendOf(from, bytes, rank));
    call.transfers.push_back({false, rank, static_cast<char*>(to) + rank * bytes, bytes});
  }
  char* const own = static_cast<char*>(to) + session.rank * bytes;
  call.finish = [=] { std::memmove(own, from, bytes); };
  return Add(communicator, stream, std::move(call));
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t communicator, cudaStream_t stream) {
  const Session& session = *communicator->session;
  if (session.rank != root) return ncclSend(from, count, type, root, communicator, stream);
  Call call;
  ReceiveAndSum(session, &call, from, to, count, type, op);
  return Add(communicator, stream, std::move(call));
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const Session& session = *communicator->session;
  const size_t bytes = count * SizeOfType(type);
  const char* const all = static_cast<const char*>(from);
  Call call;
  for (int rank = 0; rank < session.ranks; ++rank) {
    if (rank != session.rank) call.transfers.push_back(SendOf(all + rank * bytes, bytes, rank));
  }
  ReceiveAndSum(session, &call, all + session.rank * bytes, to, count, type, op);
  return Add(communicator, stream, std::move(call));
}

}  // extern "C"

namespace addend::client::cuda {

// Replaces nccl_library.cc.
const NcclLibrary* LoadNccl(std::string* why) {
  static const NcclLibrary kNccl = {&ncclGetVersion, &ncclGetUniqueId,    &ncclCommInitRank,
                                    &ncclCommAbort,  &ncclGetErrorString, &ncclGetLastError,
                                    &ncclGroupStart, &ncclGroupEnd,       &ncclSend,
                                    &ncclRecv,       &ncclBroadcast,      &ncclAllGather,
                                    &ncclReduce,     &ncclReduceScatter};
  why->clear();
  return &kNccl;
}

}  // namespace addend::client::cuda
