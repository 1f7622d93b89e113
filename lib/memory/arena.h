// Private page-aligned memory. Large arenas lie in huge pages: reserved huge pages
// (vm.nr_hugepages), which are populated at once, otherwise transparent huge pages. All other pages
// cost nothing until they are touched.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"

namespace addend {

class Arena {
 public:
  // `bytes` may be 0. RESOURCE_EXHAUSTED when the address space or the overcommit limit refuses.
  static absl::StatusOr<std::shared_ptr<Arena>> Create(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  MutableBytes memory() const { return memory_; }
  // Returns the whole pages of an unused part to the machine; they then read as zeros. Pages that a
  // transport has registered, and huge pages that the part does not fill, stay until the arena is
  // destroyed.
  static void Discard(MutableBytes part);

 private:
  Arena(MutableBytes mapping, size_t bytes);
  const MutableBytes mapping_;  // whole pages
  const MutableBytes memory_;
};

}  // namespace addend
