// Requests for copies, and the readers that wait for them.
#include "services/worker_agent/host_copies.h"

#include "absl/strings/str_format.h"

namespace addend {

void HostCopies::Bring(const std::shared_ptr<NodeTensor>& tensor, uint32_t partition, Then then) {
  if (tensor->IsOnHost(partition)) return then(true);
  const Key key(tensor->number, partition);
  if (!awaited_.contains(key) && !ask_(*tensor, partition)) return then(false);
  awaited_[key].push_back(std::move(then));
}

bool HostCopies::AwaitsAnyOf(const NodeTensor& tensor) const {
  const auto first = awaited_.lower_bound({tensor.number, 0});
  return first != awaited_.end() && first->first.first == tensor.number;
}

absl::Status HostCopies::OnFetched(NodeTensor* tensor, Round round, uint64_t offset,
                                   uint64_t bytes) {
  const uint64_t partition_bytes = tensor->partitions() > 0 ? tensor->BytesOf(0) : 0;
  const auto partition =
      partition_bytes > 0 ? static_cast<uint32_t>(offset / partition_bytes) : uint32_t{0};
  const auto awaited = awaited_.find({tensor->number, partition});
  if (awaited == awaited_.end() || round != tensor->rounds.round() ||
      offset != tensor->OffsetOf(partition) || bytes != tensor->BytesOf(partition)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes from %d on of tensor number %d in round %d, which nobody asked for", bytes,
        offset, tensor->number, round.value()));
  }
  const std::vector<Then> all = std::move(awaited->second);
  awaited_.erase(awaited);
  tensor->device.on_host[partition] = true;
  for (const Then& then : all) then(true);
  return absl::OkStatus();
}

void HostCopies::GiveUp() {
  const std::map<Key, std::vector<Then>> awaited = std::exchange(awaited_, {});
  for (const auto& [key, all] : awaited) {
    for (const Then& then : all) then(false);
  }
}

void HostCopies::Forget(const NodeTensor& tensor) {
  std::erase_if(awaited_, [&](const auto& one) { return one.first.first == tensor.number; });
}

}  // namespace addend
