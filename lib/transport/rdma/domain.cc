// Registers whole mappings (lib/memory/mappings.h), once for local and once for remote access, and
// keeps them until the mapping goes away: registration pins pages and is far too slow for each
// payload. Memory outside of known mappings is registered for a single use.

#include "lib/transport/rdma/domain.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"

namespace addend::rdma {
namespace {

absl::Status RegistrationError(const std::string& device, size_t bytes, int error) {
  if (error != ENOMEM && error != EPERM) {
    return absl::InternalError(absl::StrFormat("%s cannot register %s of memory: %s", device,
                                               FormatByteSize(bytes), std::strerror(error)));
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s cannot register %s of memory: the limit of locked memory is %s; raise it (ulimit -l "
      "unlimited) or give the container the capability IPC_LOCK",
      device, FormatByteSize(bytes), LockedMemoryLimit()));
}

}  // namespace

std::string LockedMemoryLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : FormatByteSize(limit.rlim_cur);
}

absl::StatusOr<std::shared_ptr<Domain>> Domain::Create(ibv_context* context,
                                                       const std::string& device,
                                                       std::atomic<uint64_t>* registered) {
  std::shared_ptr<Domain> made(new Domain(device, registered));
  made->domain_.reset(ibv_alloc_pd(context));
  if (made->domain_ == nullptr) {
    return absl::InternalError(
        absl::StrFormat("%s has no protection domain left: %s", device, std::strerror(errno)));
  }
  return made;
}

Domain::~Domain() {
  MutexLock lock(&mu_);
  for (const auto& [begin, regions] : regions_) Uncount(regions);
  regions_.clear();
}

absl::StatusOr<Owned<ibv_mr>> Domain::RegisterRegion(Bytes memory, int access) const {
  Owned<ibv_mr> region(
      ibv_reg_mr(domain_.get(), const_cast<std::byte*>(memory.data()), memory.size(), access));
  if (region == nullptr) return RegistrationError(device_, memory.size(), errno);
  return region;
}

absl::StatusOr<Owned<ibv_mr>> Domain::RegisterMapping(const Mapping& mapping, int access) const {
  const Bytes memory = mapping.memory;
  if (mapping.dmabuf < 0) return RegisterRegion(memory, access);
  Owned<ibv_mr> region(ibv_reg_dmabuf_mr(domain_.get(), /*offset=*/0, memory.size(),
                                         /*iova=*/reinterpret_cast<uint64_t>(memory.data()),
                                         mapping.dmabuf, access));
  if (region == nullptr) {
    return absl::UnimplementedError(absl::StrFormat("%s cannot read a GPU's memory by dma-buf: %s",
                                                    device_, std::strerror(errno)));
  }
  return region;
}

absl::StatusOr<Registered> Domain::Register(Bytes memory, Access access) {
  const Mapping mapping = FindMapping(memory);
  if (mapping.memory.empty()) {
    int flags = 0;
    if (access != Access::kSend) flags |= IBV_ACCESS_LOCAL_WRITE;
    if (access == Access::kPeerWrites) flags |= IBV_ACCESS_REMOTE_WRITE;
    ADDEND_ASSIGN_OR_RETURN(Owned<ibv_mr> region, RegisterRegion(memory, flags));
    const uint32_t local = region->lkey, remote = region->rkey;
    // The pair releases the region before the domain.
    auto keep = std::make_shared<std::pair<std::shared_ptr<Domain>, Owned<ibv_mr>>>(
        shared_from_this(), std::move(region));
    return Registered{local, remote, std::move(keep)};
  }
  MutexLock lock(&mu_);
  Regions& regions = regions_[mapping.memory.data()];
  const bool remote = access == Access::kPeerWrites;
  Owned<ibv_mr>& region = remote || regions.remote != nullptr ? regions.remote : regions.local;
  if (region == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(
        region,
        RegisterMapping(mapping, IBV_ACCESS_LOCAL_WRITE | (remote ? IBV_ACCESS_REMOTE_WRITE : 0)));
    regions.bytes = mapping.memory.size();
    *registered_ += regions.bytes;
  }
  return Registered{region->lkey, region->rkey, nullptr};
}

void Domain::Uncount(const Regions& regions) {
  if (regions.local != nullptr) *registered_ -= regions.bytes;
  if (regions.remote != nullptr) *registered_ -= regions.bytes;
}

void Domain::Forget(Bytes mapping) {
  MutexLock lock(&mu_);
  const auto found = regions_.find(mapping.data());
  if (found == regions_.end()) return;
  Uncount(found->second);
  regions_.erase(found);
}

bool Domain::empty() const {
  MutexLock lock(&mu_);
  return regions_.empty();
}

}  // namespace addend::rdma
