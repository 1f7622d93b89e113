// Private page-aligned memory. Large arenas lie in huge pages: those that the machine has set aside
// (vm.nr_hugepages), which are taken at once, else transparent ones. All other pages cost nothing
// until they are touched.
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
  // Gives the whole pages of a part that nobody uses any more back to the machine; they read as
  // zeros then. What a transport has registered, and huge pages that the part does not fill, stay
  // until the arena goes.
  static void Discard(MutableBytes part);

 private:
  Arena(MutableBytes mapping, size_t bytes);
  const MutableBytes mapping_;  // whole pages
  const MutableBytes memory_;
};

}  // namespace addend
