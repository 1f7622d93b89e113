#include "services/worker_agent/host_copies.h"

#include "absl/strings/str_format.h"

namespace addend {

void HostCopies::Bring(const std::shared_ptr<Tensor>& tensor, uint32_t partition,
                       std::function<void()> then) {
  if (tensor->IsOnHost(partition)) return then();
  const auto [awaited, is_new] =
      awaited_.try_emplace({tensor->number, partition, tensor->rounds.round()});
  awaited->second.push_back(std::move(then));
  if (is_new) ask_(*tensor, partition);
}

absl::Status HostCopies::OnFetched(Tensor* tensor, Round round, uint64_t offset, uint64_t bytes) {
  const uint64_t partition_bytes = tensor->partitions() > 0 ? tensor->BytesOf(0) : 0;
  const auto partition =
      partition_bytes > 0 ? static_cast<uint32_t>(offset / partition_bytes) : uint32_t{0};
  const auto awaited = awaited_.find({tensor->number, partition, round});
  if (awaited == awaited_.end() || offset != tensor->OffsetOf(partition) ||
      bytes != tensor->BytesOf(partition)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bytes %d to %d of tensor number %d in round %d, which nobody asked for",
                        offset, offset + bytes, tensor->number, round.value()));
  }
  const std::vector<std::function<void()>> all = std::move(awaited->second);
  awaited_.erase(awaited);
  if (!tensor->direct || tensor->rounds.round() != round) return absl::OkStatus();
  tensor->on_host[partition] = true;
  for (const auto& then : all) then();
  return absl::OkStatus();
}

void HostCopies::Forget(const Tensor& tensor) {
  std::erase_if(awaited_, [&](const auto& one) { return std::get<0>(one.first) == tensor.number; });
}

}  // namespace addend
