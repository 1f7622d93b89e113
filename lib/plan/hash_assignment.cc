#include "lib/plan/hash_assignment.h"

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// Steele, Lea and Flood's splitmix64: the paper does not name its hash.
uint64_t Hash(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<std::vector<TensorAssignment>> AssignByHash(std::span<const TensorSize> tensors,
                                                           uint64_t partition_bytes, size_t n,
                                                           size_t k) {
  if (n == 0 || k > n) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "The paper's hash assignment is for 1 or more GPU machines and at most as many CPU "
        "machines, not for %d and %d.",
        n, k));
  }
  if (partition_bytes == 0) {
    return absl::InvalidArgumentError("The partition size must be at least 1 byte, not 0.");
  }
  // With one GPU machine and k = 1 the range is empty: the CPU machine's share is 0.
  const uint64_t of_gpu = n == 1 ? 1 : n - k, of_cpu = 2 * (n - 1);
  const uint64_t range = n * of_gpu + k * of_cpu;
  std::vector<TensorAssignment> assignments;
  uint64_t number = 0;
  for (const TensorSize& tensor : tensors) {
    TensorAssignment a;
    a.partition_elements = PartitionElements(tensor.dtype, partition_bytes);
    const uint64_t count = PartitionCount(tensor.elements, a.partition_elements);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t value = Hash(number++) % range;
      a.servers.push_back(static_cast<uint32_t>(
          value < n * of_gpu ? value / of_gpu : n + (value - n * of_gpu) / of_cpu));
    }
    a.shards.assign(count, 0);
    assignments.push_back(std::move(a));
  }
  return assignments;
}

}  // namespace addend
