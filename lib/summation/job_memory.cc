// The reservation of accumulators, and its refusals.
#include "lib/summation/job_memory.h"

#include "absl/strings/str_format.h"
#include "lib/base/units.h"

namespace addend {

absl::Status JobMemory::Reserve(std::string_view tensor, uint64_t bytes) {
  if (bytes > free()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' needs %s for its accumulators, and %s of the %s that a job may take here are "
        "free (--job-memory-limit)",
        tensor, FormatByteSize(bytes), FormatByteSize(free()), FormatByteSize(limit_)));
  }
  if (!budget_->TryReserve(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' needs %s for its accumulators, and %s of the memory limit of %s are free",
        tensor, FormatByteSize(bytes), FormatByteSize(budget_->free()),
        FormatByteSize(budget_->limit())));
  }
  reserved_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace addend
