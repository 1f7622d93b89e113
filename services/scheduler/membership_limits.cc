// Membership: what one job may take, so that none can take what all the others need.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

// Far above what anybody trains with; each costs the scheduler a few kilobytes.
constexpr size_t kMaxJobs = 10'000;
constexpr size_t kMaxTensors = 100'000;

}  // namespace

absl::Status Membership::CheckRoomForJob(const std::string& name) const {
  if (jobs_.size() < kMaxJobs) return absl::OkStatus();
  return WithExitCode(absl::ResourceExhaustedError(absl::StrFormat(
                          "job '%s' cannot begin: this scheduler has %d jobs, and takes no more",
                          name.substr(0, 253), jobs_.size())),
                      kExitTemporary);
}

absl::Status Membership::CheckRoomForTensor(const Job& job, const std::string& name) {
  if (job.tensors.size() < kMaxTensors) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("tensor '%s' cannot be declared: job '%s' has %d tensors, and may have no "
                      "more; undeclare those that are not needed",
                      name, job.name, job.tensors.size()));
}

// Of the server's memory: for the accumulators of a further tensor of this job.
ServerRoom Membership::RoomFor(const Job& job, const Server& server) {
  const uint64_t limit = server.info.job_memory_limit_bytes();
  if (limit == 0) return {server.free_bytes, /*of_job_limit=*/false};
  uint64_t taken = 0;
  for (const auto& [agreement, tensor] : job.tensors) {
    const auto owned = tensor.owned.find(server.id);
    if (owned != tensor.owned.end()) taken += owned->second.accumulator_bytes;
  }
  const uint64_t left = limit - std::min(limit, taken);
  if (left >= server.free_bytes) return {server.free_bytes, /*of_job_limit=*/false};
  return {left, /*of_job_limit=*/true};
}

}  // namespace addend
