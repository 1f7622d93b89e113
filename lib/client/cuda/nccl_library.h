// NCCL's functions, loaded when a group of GPUs is joined: a process that never aggregates on GPUs
// needs no NCCL, and a process that trains with PyTorch uses PyTorch's NCCL.
#pragma once

#include <nccl.h>

#include <string>

namespace addend::client::cuda {

struct NcclLibrary {
  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclCommInitRank) CommInitRank = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;
  decltype(&ncclAllGather) AllGather = nullptr;
  decltype(&ncclReduce) Reduce = nullptr;
  decltype(&ncclReduceScatter) ReduceScatter = nullptr;
};

// Returns null, with a sentence in `why`, if NCCL is missing or too old. The library stays loaded.
const NcclLibrary* LoadNccl(std::string* why);

}  // namespace addend::client::cuda
