#include "lib/client/cuda/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace addend::client::cuda {
namespace {

constexpr char kName[] = "libnccl.so.2";

// Returns the name of the first function that the library lacks, or an empty string.
std::string FindAll(void* library, NcclLibrary* nccl) {
  std::string missing;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  find(&nccl->GetVersion, "ncclGetVersion");
  find(&nccl->GetUniqueId, "ncclGetUniqueId");
  find(&nccl->CommInitRank, "ncclCommInitRank");
  find(&nccl->CommAbort, "ncclCommAbort");
  find(&nccl->GetErrorString, "ncclGetErrorString");
  find(&nccl->GetLastError, "ncclGetLastError");
  find(&nccl->GroupStart, "ncclGroupStart");
  find(&nccl->GroupEnd, "ncclGroupEnd");
  find(&nccl->Send, "ncclSend");
  find(&nccl->Recv, "ncclRecv");
  find(&nccl->Broadcast, "ncclBroadcast");
  find(&nccl->AllGather, "ncclAllGather");
  find(&nccl->Reduce, "ncclReduce");
  find(&nccl->ReduceScatter, "ncclReduceScatter");
  return missing;
}

struct Loaded {
  NcclLibrary nccl;
  std::string why;

  Loaded() {
    void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = std::string("GPUs of one node aggregate with NCCL, which cannot be loaded: ") +
            dlerror() + "; install NCCL 2, or put its folder on LD_LIBRARY_PATH";
      return;
    }
    const std::string missing = FindAll(library, &nccl);
    if (!missing.empty()) {
      why = std::string(kName) + " is too old, it has no " + missing + "; NCCL 2.13 or newer has";
    }
  }
};

}  // namespace

const NcclLibrary* LoadNccl(std::string* why) {
  static const Loaded* const loaded = new Loaded;
  *why = loaded->why;
  return why->empty() ? &loaded->nccl : nullptr;
}

}  // namespace addend::client::cuda
