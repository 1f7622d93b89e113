// The checks of a job and of a reservation, before the engine works with them.
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/summation/engine.h"

namespace addend {

absl::Status Engine::CheckJob(const JobSpec& spec) const {
  MutexLock lock(&mu_);
  const auto held = jobs_.find(spec.id);
  const bool same_nodes = held == jobs_.end() || held->second.spec.generation != spec.generation ||
                          (held->second.spec.num_nodes == spec.num_nodes &&
                           held->second.spec.local_size == spec.local_size);
  const bool lost_exist = spec.lost.empty() || spec.lost.rbegin()->value() < spec.num_nodes;
  if (IsJobSize(spec.num_nodes, spec.local_size) && same_nodes && lost_exist) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "job %d cannot have %d nodes of %d ranks, and lost those that it is said to have lost",
      spec.id.value(), spec.num_nodes, spec.local_size));
}

bool IsSameTensor(const TensorSpec& a, const TensorSpec& b) {
  const auto ranks = [](const TensorSpec& tensor) {
    return tensor.participants == nullptr ? std::nullopt : std::optional(*tensor.participants);
  };
  const auto rest = [](const TensorSpec& tensor) {
    return std::tie(tensor.name, tensor.dtype, tensor.op, tensor.wire, tensor.elements,
                    tensor.partition_elements);
  };
  return rest(a) == rest(b) && ranks(a) == ranks(b);
}

TensorSpec WithoutPartitions(TensorSpec tensor) {
  tensor.partitions.clear();
  tensor.shards.clear();
  tensor.versions.clear();
  tensor.handed_over.clear();
  tensor.relayed.clear();
  return tensor;
}

absl::Status CheckTensor(const TensorSpec& tensor, size_t shards) {
  if (tensor.partitions.size() != tensor.shards.size() ||
      tensor.partitions.size() != tensor.versions.size() ||
      tensor.partitions.size() != tensor.handed_over.size() || tensor.partition_elements == 0 ||
      (!tensor.relayed.empty() && tensor.relayed.size() != tensor.partitions.size()) ||
      static_cast<int>(tensor.dtype) >= kDTypes || static_cast<int>(tensor.op) >= kReduceOps ||
      tensor.elements > kMaxElements ||
      std::set(tensor.partitions.begin(), tensor.partitions.end()).size() !=
          tensor.partitions.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the reservation of '%s' is malformed", tensor.name));
  }
  for (size_t i = 0; i < tensor.partitions.size(); ++i) {
    if (tensor.shards[i] >= shards || tensor.elements == 0 ||
        tensor.partitions[i] > (tensor.elements - 1) / tensor.partition_elements ||
        tensor.ElementsOf(tensor.partitions[i]) * SizeOf(tensor.dtype) > kMaxPayloadBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "partition %d of '%s' does not exist, is too large or names shard %d of %d",
          tensor.partitions[i], tensor.name, tensor.shards[i], shards));
    }
  }
  return absl::OkStatus();
}

}  // namespace addend
