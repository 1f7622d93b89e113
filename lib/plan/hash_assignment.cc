#include "lib/plan/hash_assignment.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/mix.h"

namespace addend {
absl::StatusOr<std::vector<TensorAssignment>> AssignByHash(std::span<const TensorSize> tensors,
                                                           const PartitionSize& partition_size,
                                                           size_t n, size_t k) {
  if (n == 0 || k > n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The paper's hash assignment is for 1 or more GPU machines and at most as many CPU "
        "machines, not for %d and %d.",
        n, k));
  }
  if (partition_size.least() == 0) {
    return absl::InvalidArgumentError("The partition size must be at least 1 byte, not 0.");
  }
  // With one GPU machine and k = 1 the range is empty: the CPU machine's share is 0.
  const uint64_t of_gpu = n == 1 ? 1 : n - k, of_cpu = 2 * (n - 1);
  const uint64_t range = n * of_gpu + k * of_cpu;
  std::vector<TensorAssignment> assignments;
  uint64_t number = 0;
  for (const TensorSize& tensor : tensors) {
    TensorAssignment a;
    a.partition_elements = PartitionElements(tensor, partition_size);
    const uint64_t count = PartitionCount(tensor.elements, a.partition_elements);
    for (uint64_t i = 0; i < count; ++i) {
      // The paper does not name its hash.
      const uint64_t value = Mix(number++) % range;
      a.servers.push_back(static_cast<uint32_t>(
          value < n * of_gpu ? value / of_gpu : n + (value - n * of_gpu) / of_cpu));
    }
    a.shards.assign(count, 0);
    assignments.push_back(std::move(a));
  }
  return assignments;
}

}  // namespace addend
