// A protection domain of a device, shared by the links of an owner. No queue pair of another owner
// reaches the memory that is registered here, whatever key and address its peer has guessed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/mutex.h"
#include "lib/memory/mappings.h"
#include "lib/transport/rdma/verbs.h"

namespace addend::rdma {

// Memory that the NIC may read and write.
struct Registered {
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  // Keeps memory outside of all mappings registered.
  std::shared_ptr<void> keep;
};

// The use of registered memory.
enum class Access : uint8_t { kSend, kReceive, kPeerWrites };

// The process's limit of locked memory, for messages.
std::string LockedMemoryLimit();

// Thread-safe.
class Domain : public std::enable_shared_from_this<Domain> {
 public:
  // `context` and `registered`, the bytes of all domains of the device together, must outlive the
  // domain. `device`: its name, for messages.
  static absl::StatusOr<std::shared_ptr<Domain>> Create(ibv_context* context,
                                                        const std::string& device,
                                                        std::atomic<uint64_t>* registered);
  ~Domain();

  ibv_pd* get() const { return domain_.get(); }
  // Returns the keys of `memory`. The whole mapping that contains `memory` is registered, once,
  // until it is unmapped; memory outside of mappings is registered for this use alone.
  // RESOURCE_EXHAUSTED: the limit of locked memory. UNIMPLEMENTED: GPU memory that this NIC cannot
  // read.
  absl::StatusOr<Registered> Register(Bytes memory, Access access);
  // Deregisters a mapping that is about to be unmapped.
  void Forget(Bytes mapping);
  // True if no mapping is registered.
  bool empty() const;

 private:
  // The regions of a mapping: `local` is used until peers are to write there, then `remote`.
  struct Regions {
    size_t bytes = 0;
    Owned<ibv_mr> local;
    Owned<ibv_mr> remote;
  };

  Domain(std::string device, std::atomic<uint64_t>* registered)
      : device_(std::move(device)), registered_(registered) {}
  absl::StatusOr<Owned<ibv_mr>> RegisterRegion(Bytes memory, int access) const;
  absl::StatusOr<Owned<ibv_mr>> RegisterMapping(const Mapping& mapping, int access) const;
  void Uncount(const Regions& regions);

  const std::string device_;
  std::atomic<uint64_t>* const registered_;
  Owned<ibv_pd> domain_;
  mutable Mutex mu_;
  std::map<const std::byte*, Regions> regions_ ABSL_GUARDED_BY(mu_);  // by the begin of the mapping
};

}  // namespace addend::rdma
