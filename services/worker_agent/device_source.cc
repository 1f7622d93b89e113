// Staging, direct reads and copies of contributions on GPUs.
#include "services/worker_agent/device_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/link/server_link.h"

namespace addend {
namespace {

// The partition in the running round.
ipc::Range RangeOf(const NodeTensor& tensor, uint32_t partition) {
  return {.tensor = tensor.number,
          .round = tensor.rounds.round().value(),
          .offset = tensor.OffsetOf(partition),
          .bytes = tensor.BytesOf(partition)};
}

}  // namespace

DeviceSource::DeviceSource(const NodeContext& context, const LocalRanks* ranks,
                           const TensorTable* tensors, GenerationState* state,
                           const DeviceRanks* devices, ContributionSource* host, Listener* listener)
    : context_(context),
      ranks_(ranks),
      tensors_(tensors),
      state_(state),
      devices_(devices),
      host_(host),
      listener_(listener),
      order_([this](const std::shared_ptr<NodeTensor>& tensor, uint32_t lead) {
        TellContribute(tensor.get(), lead);
      }),
      copies_([this](const NodeTensor& tensor, uint32_t partition) {
        return RequestCopy(tensor, partition);
      }) {}

bool DeviceSource::IsDirectRank(const Trainer& trainer) const {
  return devices_->direct_rank() == static_cast<uint32_t>(trainer.local_rank);
}

absl::Status DeviceSource::OnDirect(const Trainer& trainer, const ipc::DirectMessage& offer,
                                    UniqueFd dmabuf) {
  const auto tensor = tensors_->ByNumber(offer.tensor);
  if (!state_->running() || tensor == nullptr) return absl::OkStatus();
  if (!IsDirectRank(trainer) || offer.bytes != tensor->bytes ||
      tensor->bytes < ipc::kDirectBytesMin || tensor->device.range != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory of a GPU for tensor number %d, which is not this rank's to offer", offer.tensor));
  }
  if (!may_read_devices_) return absl::OkStatus();  // the rank was told
  absl::StatusOr<std::shared_ptr<DeviceRange>> range = absl::ResourceExhaustedError(
      "the descriptor of its memory did not come: raise the limit of open files (ulimit -n)");
  if (dmabuf.valid()) range = DeviceRange::Reserve(std::move(dmabuf), tensor->bytes);
  absl::Status status = range.status();
  // All NICs: any may be chosen for a payload.
  for (const auto& device : context_.options->rdma_devices) {
    if (!status.ok()) break;
    status = device->Register((*range)->memory(), rdma::Access::kSend).status();
  }
  if (status.ok()) {
    tensor->device.range = *std::move(range);
  } else {
    StopReadingDevices(Message(status));
  }
  return absl::OkStatus();
}

void DeviceSource::StopReadingDevices(const std::string& why) {
  if (!devices_->direct_rank() || !may_read_devices_) return;
  may_read_devices_ = false;
  spdlog::warn("no GPUDirect RDMA any more, contributions go through host memory: {}", why);
  ranks_->Tell(*devices_->direct_rank(), ipc::DirectMessage());
}

// Not before the plan is known; and not if all servers need host memory: then the GPU would be a
// detour.
bool DeviceSource::GoesDirect(const NodeTensor& tensor) const {
  if (tensor.device.range == nullptr || !tensor.planned() || !may_read_devices_) return false;
  if (tensor.shape.wire.lossy()) return false;  // the host rounds
  for (uint32_t partition = 0; partition < tensor.partitions(); ++partition) {
    if (tensor.owners[partition].link->TakesFromDevice(tensor.BytesOf(partition))) return true;
  }
  return false;
}

bool DeviceSource::RequestCopy(const NodeTensor& tensor, uint32_t partition) const {
  const auto& rank = devices_->direct_rank();
  if (!rank || ranks_->at(*rank) == nullptr) return false;
  ranks_->Tell(*rank, ipc::FetchMessage{RangeOf(tensor, partition)});
  return true;
}

absl::Status DeviceSource::OnFetched(const Trainer& trainer, const ipc::FetchedMessage& fetched) {
  const ipc::Range& range = fetched.range;
  const auto tensor = tensors_->ByNumber(range.tensor);
  if (state_->failed() || tensor == nullptr) return absl::OkStatus();  // it came too late
  if (!IsDirectRank(trainer)) {
    return absl::InvalidArgumentError("a copy from a GPU that is not read directly");
  }
  return copies_.OnFetched(tensor.get(), Round(range.round), range.offset, range.bytes);
}

void DeviceSource::OnRankGone(uint32_t local_rank) {
  if (devices_->direct_rank() == local_rank) copies_.GiveUp();
}

void DeviceSource::OnPush(const std::shared_ptr<NodeTensor>& tensor, uint32_t local_rank,
                          bool on_device) {
  const DeviceGroups& groups = devices_->groups();
  if (!state_->running() || (!on_device && !groups.decided())) return;
  const uint32_t lead = groups.LeadOf(local_rank);
  if (on_device) tensor->device.pushes[local_rank] = {.used = true, .lead = lead, .staged = 0};
  const std::vector<uint32_t> members = groups.MembersOf(local_rank);
  std::vector<uint32_t> from_host;
  for (const uint32_t member : members) {
    if (!tensor->rounds.HasPushed(member)) return;
    if (!tensor->device.pushes[member].used) from_host.push_back(member);
  }
  if (from_host.empty()) return order_.Announce(tensor, lead);
  if (from_host.size() == members.size()) return;
  state_->Fail(MakeFailure(
      FailureKind::kMismatch,
      absl::StrFormat("ranks %s aggregate on their GPUs, but tensor '%s' was pushed from host "
                      "memory by rank %s: all of them must push a tensor from the same place",
                      ranks_->RanksOf(members), tensor->shape.name, ranks_->RanksOf(from_host))));
}

void DeviceSource::TellContribute(NodeTensor* tensor, uint32_t lead) const {
  ipc::ContributeMessage message{.tensor = tensor->number, .round = tensor->rounds.round().value()};
  const std::vector<uint32_t> members = devices_->groups().MembersOf(lead);
  for (size_t member = 0; member < members.size(); ++member) {
    if (tensor->rounds.HasData(members[member])) message.with_data |= uint64_t{1} << member;
  }
  message.direct = message.with_data != 0 && GoesDirect(*tensor);
  tensor->device.direct = message.direct;
  if (message.direct) tensor->device.on_host.assign(tensor->partitions(), false);
  for (const uint32_t member : members) ranks_->Tell(member, message);
}

absl::Status DeviceSource::OnStaged(const Trainer& trainer, const ipc::StagedMessage& staged) {
  const auto tensor = tensors_->ByNumber(staged.tensor);
  if (state_->failed() || tensor == nullptr) return absl::OkStatus();  // it came too late
  const auto rank = static_cast<uint32_t>(trainer.local_rank);
  DevicePart::Push& push = tensor->device.pushes[rank];
  if (!push.used || staged.round != tensor->rounds.round().value() ||
      staged.bytes > tensor->bytes || staged.bytes <= push.staged) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes of tensor number %d staged in round %d, where %d of %d are in round %d",
        staged.bytes, staged.tensor, staged.round, push.staged, tensor->bytes,
        tensor->rounds.round().value()));
  }
  push.staged = staged.bytes;
  for (PartitionPush& ready : queue_.Advance(*tensor)) host_->Begin(std::move(ready));
  const std::vector<uint32_t> members = devices_->groups().MembersOf(rank);
  const bool all = std::all_of(members.begin(), members.end(), [&](uint32_t member) {
    return tensor->device.pushes[member].staged == tensor->bytes;
  });
  if (all) order_.Done(*tensor, push.lead);
  return absl::OkStatus();
}

void DeviceSource::Begin(PartitionPush push) {
  if (!queue_.Hold(push)) host_->Begin(std::move(push));
}

bool DeviceSource::Reads(const PartitionPush& push) {
  const NodeTensor& tensor = *push.tensor;
  if (tensor.IsOnHost(push.partition)) return true;
  const size_t bytes = tensor.Contribution(push.partition).size();
  if (!may_read_devices_ || !tensor.owners[push.partition].link->TakesFromDevice(bytes)) {
    SendWhenBrought(push);
    return false;
  }
  context_.counters->direct_bytes += bytes;
  return true;
}

void DeviceSource::SendWhenBrought(const PartitionPush& push) {
  const PartitionId id(push.tensor->id, push.partition);
  const auto [unsent, is_new] = unsent_.try_emplace(id, push);
  unsent->second.priority = std::max(unsent->second.priority, push.priority);
  if (!is_new) return;
  copies_.Bring(push.tensor, push.partition, [this, id](bool there) {
    const auto node = unsent_.extract(id);
    if (node.empty()) return;
    const PartitionPush& brought = node.mapped();
    if (!brought.tensor->rounds.Wants(brought.partition, brought.round)) return;
    if (there) return listener_->OnReadable(brought);
    FailForGoneRank(brought);
  });
}

void DeviceSource::FailForGoneRank(const PartitionPush& push) {
  state_->Fail(MakeFailure(
      FailureKind::kPeerLost,
      absl::StrFormat("rank %s has ended before its contribution to round %d of tensor '%s' was "
                      "read from its GPU",
                      ranks_->RanksOf({*devices_->direct_rank()}), push.round.value(),
                      push.tensor->shape.name)));
}

bool DeviceSource::MayEnd(const NodeTensor& tensor, uint32_t partition, bool on_host) const {
  return !copies_.Awaits(tensor, partition) && (!on_host || tensor.IsOnHost(partition));
}

void DeviceSource::Bring(const std::shared_ptr<NodeTensor>& tensor, uint32_t partition, Then then) {
  copies_.Bring(tensor, partition, std::move(then));
}

void DeviceSource::OnDelivered(const NodeTensor& tensor, uint32_t partition) {
  const ipc::ArrivedMessage message{RangeOf(tensor, partition)};
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    if (tensor.device.pushes[rank].used) ranks_->Tell(rank, message);
  }
}

// The sum of a group's GPUs does not tell its ranks apart.
std::vector<uint32_t> DeviceSource::RanksIn(const NodeTensor& tensor, uint32_t segment) const {
  if (!tensor.device.pushes[segment].used) return {segment};
  return devices_->groups().MembersOf(segment);
}

std::string DeviceSource::WhyOpen(const NodeTensor& tensor) const {
  if (tensor.StagedBytes() < tensor.bytes) {
    std::vector<uint32_t> late;
    for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
      const DevicePart::Push& push = tensor.device.pushes[rank];
      if (push.used && push.staged < tensor.bytes) late.push_back(rank);
    }
    return absl::StrFormat("rank %s of this node has pushed it, and its GPU has not finished it",
                           ranks_->RanksOf(late));
  }
  if (!copies_.AwaitsAnyOf(tensor)) return "";
  return absl::StrFormat("the GPU of rank %s has not copied a part of it to host memory",
                         ranks_->RanksOf({*devices_->direct_rank()}));
}

void DeviceSource::Forget(const NodeTensor& tensor) {
  order_.Forget(tensor);
  copies_.Forget(tensor);
  absl::erase_if(unsent_, [&](const auto& one) { return one.second.tensor.get() == &tensor; });
}

void DeviceSource::Stop() {
  queue_.Clear();
  host_->Stop();
}

}  // namespace addend
