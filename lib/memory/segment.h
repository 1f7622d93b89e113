// Shared memory between an agent and its trainers: created by the agent with memfd_create, sealed
// against resizing, passed over the Unix socket as a descriptor. Nothing is left behind when a
// process dies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"

namespace addend {

class Segment {
 public:
  enum class Peer {
    kMayWrite,  // the receiver of the descriptor may map it writable (a contribution)
    kReadOnly,  // only this process's mapping can write (results): F_SEAL_FUTURE_WRITE
  };
  // `bytes` > 0, of lazily touched zero pages. RESOURCE_EXHAUSTED names the size.
  static absl::StatusOr<std::shared_ptr<Segment>> Create(const std::string& name, size_t bytes,
                                                         Peer peer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  MutableBytes memory() const { return memory_; }
  // Stays open until CloseDescriptor(); the mapping does not need it.
  int fd() const { return fd_.get(); }
  void CloseDescriptor() { fd_.Reset(); }
  // Counts the reads of this segment by another thread of this process. A round lies between such a
  // read and the next write of the same bytes, but it passes through other machines: the counter
  // makes the order known to the C++ memory model, too.
  std::atomic<uint64_t>* reads() { return &reads_; }

 private:
  Segment(UniqueFd fd, MutableBytes memory);
  UniqueFd fd_;
  const MutableBytes memory_;
  std::atomic<uint64_t> reads_{0};
};

}  // namespace addend
