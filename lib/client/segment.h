// The trainer's mapping of a segment that the agent made. A child of fork() does not inherit it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lib/client/error.h"

namespace addend::client {

class Segment {
 public:
  enum class Access { kReadOnly, kReadWrite };
  // Maps the first `bytes` of `fd`, which the caller may close afterwards. ADDEND_ERROR_INTERNAL if
  // the segment is shorter than that, ADDEND_ERROR_RESOURCES if it cannot be mapped; both errors
  // name `what`. `guard_bytes`: the size of the page behind that begins with the guard; older
  // agents have none.
  static Error Map(int fd, size_t bytes, Access access, const std::string& what,
                   std::unique_ptr<Segment>* segment, size_t guard_bytes = 0);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Writing to a read-only segment causes a fault.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Sets the guard (ipc.h): the memory may be written from now on.
  void Withdraw() const;

 private:
  Segment(std::byte* data, size_t bytes, size_t guard_bytes)
      : data_(data), bytes_(bytes), guard_bytes_(guard_bytes) {}
  std::byte* const data_;
  const size_t bytes_;
  const size_t guard_bytes_;
};

}  // namespace addend::client
