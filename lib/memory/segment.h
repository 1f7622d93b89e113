// Shared memory between an agent and its trainers: created by the agent with memfd_create, sealed
// against resizing, passed over the Unix socket as a descriptor. Nothing is left behind when a
// process dies.
//
// A segment can also be lent: the agent's transports then let other processes of this machine read
// it (lib/transport/shm).
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
    kMayWrite,  // the receiver of the descriptor may map it writable
    // The same, and a page follows that begins with the guard: a 32-bit word, which the receiver
    // sets before it writes what others may still read (a contribution).
    kMayWriteGuarded,
    kReadOnly,  // only this process's mapping can write (results): F_SEAL_FUTURE_WRITE
  };
  static constexpr size_t kGuardBytes = 4096;  // of the page
  // `bytes` > 0, of lazily touched zero pages; whole pages if guarded. RESOURCE_EXHAUSTED names the
  // size.
  static absl::StatusOr<std::shared_ptr<Segment>> Create(const std::string& name, size_t bytes,
                                                         Peer peer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  MutableBytes memory() const { return memory_; }
  int fd() const { return fd_.get(); }
  // From now on others may read it where it lies. Not if its receiver may write without a guard.
  void Lend() const;
  // Counts the reads of this segment by another thread of this process. A round lies between such a
  // read and the next write of the same bytes, but it passes through other machines: the counter
  // makes the order known to the C++ memory model, too.
  std::atomic<uint64_t>* reads() { return &reads_; }

 private:
  Segment(UniqueFd fd, MutableBytes memory, Peer peer);
  const UniqueFd fd_;
  const MutableBytes memory_;
  const Peer peer_;
  std::atomic<uint64_t> reads_{0};
};

}  // namespace addend
