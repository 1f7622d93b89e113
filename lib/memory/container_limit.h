// The memory that this process may use, as the kernel says it.
#pragma once

#include <cstdint>
#include <string>

namespace addend {

struct MemoryFacts {
  uint64_t limit_bytes = 0;  // of the control group; 0: none
  std::string source;        // where the limit stands
  uint64_t machine_bytes = 0;
  // What there is, in any case.
  uint64_t usable_bytes() const {
    return limit_bytes != 0 && limit_bytes < machine_bytes ? limit_bytes : machine_bytes;
  }
};

// The smallest limit of the control groups, version 1 or 2, that this process is in, of the file
// systems below `root` ("" for the machine's own). From any thread.
MemoryFacts ReadMemory(const std::string& root = "");

}  // namespace addend
