// A file in memory that another process has made.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/fd.h"

namespace addend::shm {

// A mapping, which it ends.
class MappedFile {
 public:
  enum class Access { kRead, kReadWrite };
  // Maps the first `bytes` (> 0). INVALID_ARGUMENT: reading it could end this process, since its
  // maker can shorten it, it is shorter already, or its pages come from elsewhere than from the
  // kernel's common memory. RESOURCE_EXHAUSTED: it cannot be mapped.
  static absl::StatusOr<MappedFile> Map(const UniqueFd& file, size_t bytes, Access access);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  MutableBytes memory() const { return memory_; }

 private:
  explicit MappedFile(MutableBytes memory) : memory_(memory) {}
  MutableBytes memory_;
};

}  // namespace addend::shm
