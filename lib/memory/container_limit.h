// The memory that this process may use, according to the kernel.
#pragma once

#include <cstdint>
#include <string>

namespace addend {

struct MemoryFacts {
  uint64_t limit_bytes = 0;  // of the control group; 0: no limit
  std::string source;        // the file with the limit
  uint64_t machine_bytes = 0;
  // The smaller of the limit and the machine's memory.
  uint64_t usable_bytes() const {
    return limit_bytes != 0 && limit_bytes < machine_bytes ? limit_bytes : machine_bytes;
  }
};

// Reads the smallest limit of the control groups, version 1 or 2, that this process is in, from the
// file systems below `root` ("" for the machine's own). From any thread.
MemoryFacts ReadMemory(const std::string& root = "");

}  // namespace addend
