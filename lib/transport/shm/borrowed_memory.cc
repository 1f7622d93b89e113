#include "lib/transport/shm/borrowed_memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/copy_past_caches.h"
#include "lib/base/status_macros.h"

namespace addend::shm {
namespace {

using Word = uint32_t;

// The reads before happen before the reads after. (The thread sanitizer, which cannot see what
// another process writes, knows no fences.)
void OrderReads() {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

}  // namespace

absl::Status BorrowedMemory::Add(const Record& segment, const UniqueFd& file) {
  if (segments_.size() >= kMostSegments) {
    return absl::InvalidArgumentError(
        absl::StrFormat("more than %d shared segments on one link", kMostSegments));
  }
  constexpr uint64_t kMost = uint64_t{1} << 44;  // of a tensor (docs/security.md)
  if (segment.value == 0 || segment.value > kMost || segment.guard > kMost ||
      segment.guard % sizeof(Word) != 0 || (segment.guard != 0 && segment.guard < segment.value)) {
    return absl::InvalidArgumentError("a shared segment with impossible bounds");
  }
  const size_t bytes =
      std::max(segment.value, segment.guard == 0 ? 0 : segment.guard + sizeof(Word));
  ADDEND_ASSIGN_OR_RETURN(MappedFile mapped,
                          MappedFile::Map(file, bytes, MappedFile::Access::kRead));
  const bool added =
      segments_
          .try_emplace(segment.segment, Segment{std::move(mapped), segment.value, segment.guard})
          .second;
  if (!added) return absl::InvalidArgumentError("two shared segments with one number");
  return absl::OkStatus();
}

absl::Status BorrowedMemory::Check(const Record& lent, size_t bytes) const {
  const auto it = segments_.find(lent.segment);
  if (it == segments_.end() || lent.value > it->second.bytes ||
      bytes > it->second.bytes - lent.value) {
    return absl::InvalidArgumentError("a payload outside of the shared segments");
  }
  return absl::OkStatus();
}

absl::Status BorrowedMemory::Copy(const Record& lent, MutableBytes room, bool past_caches) const {
  ADDEND_RETURN_IF_ERROR(Check(lent, room.size()));
  const Segment& segment = segments_.at(lent.segment);
  const std::byte* const memory = segment.file.memory().data();
  if (past_caches) {
    CopyPastCaches(room.data(), memory + lent.value, room.size());
  } else {
    std::memcpy(room.data(), memory + lent.value, room.size());
  }
  if (segment.guard == 0) return absl::OkStatus();
  OrderReads();
  const auto* const guard = reinterpret_cast<const std::atomic<Word>*>(memory + segment.guard);
  if (guard->load() == 0) return absl::OkStatus();
  return absl::UnavailableError("the trainer has ended the round whose contribution it had lent");
}

}  // namespace addend::shm
