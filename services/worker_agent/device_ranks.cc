// From the ranks' GPUs to their groups.
#include "services/worker_agent/device_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

constexpr size_t kGroupIdBytes = 128;
constexpr absl::Duration kTellAfter = absl::Seconds(5);

Layout EveryGpuCopies(uint32_t local_ranks, std::string why) {
  Layout layout;
  for (uint32_t rank = 0; rank < local_ranks; ++rank) layout.groups.push_back({rank});
  layout.why.push_back(std::move(why));
  return layout;
}

}  // namespace

absl::Status DeviceRanks::OnDevice(const Trainer& trainer, ipc::DeviceMessage device) {
  if (!state_->running()) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(
      groups_.Join(static_cast<uint32_t>(trainer.local_rank), std::move(device.bus_id)));
  first_at_ = std::min(first_at_, context_.loop->Now());
  if (!groups_.AllJoined()) return absl::OkStatus();
  const absl::Status decided = DecideLayout();
  if (!decided.ok()) {
    state_->Fail(WithKind(decided, FailureKind::kMismatch));
    return absl::OkStatus();
  }
  spdlog::info("GPUs of this node aggregate by {}: {}", NameOf(groups_.layout().strategy),
               absl::StrJoin(groups_.layout().why, "; "));
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) TellGroup(rank);
  return absl::OkStatus();
}

absl::Status DeviceRanks::DecideLayout() {
  const NodeOptions& options = *context_.options;
  // A pod sees neither the GPUs of another nor its memory.
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    const Trainer* const trainer = ranks_->at(rank);
    if (trainer == nullptr || !trainer->launched_apart) continue;
    if (options.intranode.value_or(Strategy::kCopy) != Strategy::kCopy) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--intranode=%s needs all GPUs of a node in one pod, but rank %s is in a pod of its own: "
          "use copy or auto",
          NameOf(*options.intranode), ranks_->RanksOf({rank})));
    }
    return groups_.Decide(EveryGpuCopies(options.local_size, "the ranks are in several pods"));
  }
  // Not at the start: the driver may take a second to name the GPUs that NVLink joins, and most
  // agents have no GPU.
  const absl::StatusOr<Topology> machine =
      options.topology ? *options.topology : ReadTopology(/*file=*/"");
  const absl::Status known =
      machine.ok() ? Restrict(*machine, groups_.bus_ids()).status() : machine.status();
  if (!known.ok() && !options.intranode) {
    // Correct on every machine, if not the fastest layout.
    spdlog::warn("the topology of this machine's GPUs is unknown ({}): --topology=FILE gives it{}",
                 Message(known), options.gpudirect ? "; --gpudirect has no effect" : "");
    return groups_.Decide(EveryGpuCopies(options.local_size, Message(known)));
  }
  ADDEND_RETURN_IF_ERROR(machine.status());
  ADDEND_ASSIGN_OR_RETURN(Layout layout,
                          ChooseLayout(*machine, groups_.bus_ids(), options.intranode));
  if (options.gpudirect) DecideDirect(*machine, &layout);
  return groups_.Decide(std::move(layout));
}

void DeviceRanks::DecideDirect(const Topology& machine, Layout* layout) {
  std::vector<std::string> nics;
  for (const auto& device : context_.options->rdma_devices) nics.push_back(device->name());
  const absl::StatusOr<uint32_t> rank = ChooseDirectRank(machine, groups_.bus_ids(), nics, *layout);
  if (!rank.ok()) {
    return spdlog::warn("--gpudirect has no effect: {}", Message(rank.status()));
  }
  direct_rank_ = *rank;
  if (!layout->roots.empty()) layout->roots.assign(1, *rank);
  layout->why.push_back(absl::StrFormat(
      "a NIC reads contributions from the GPU of local rank %d (--gpudirect)", *rank));
}

void DeviceRanks::TellGroup(uint32_t local_rank) const {
  const ipc::Group group = groups_.GroupOf(local_rank);
  ranks_->Tell(local_rank,
               ipc::GroupMessage{.member = group.member,
                                 .members = group.members,
                                 .scatter = group.scatter,
                                 .ordered = context_.options->deterministic_intranode,
                                 .direct = direct_rank_ == local_rank,
                                 .roots = {group.roots, group.roots + group.num_roots}});
}

absl::Status DeviceRanks::OnGroupId(const Trainer& trainer, const ipc::GroupIdMessage& made) const {
  const auto rank = static_cast<uint32_t>(trainer.local_rank);
  if (!groups_.decided() || groups_.LeadOf(rank) != rank || made.id.size() != kGroupIdBytes) {
    return absl::InvalidArgumentError("an id of a group that is not this rank's to make");
  }
  for (const uint32_t member : groups_.MembersOf(rank)) {
    if (member != rank) ranks_->Tell(member, made);
  }
  return absl::OkStatus();
}

absl::Status DeviceRanks::OnAttach(Trainer* trainer, const ipc::AttachMessage& attach) const {
  if (!state_->running()) return absl::OkStatus();
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  const auto tensor = tensors_->Attached(attach.tensor, rank);
  if (tensor == nullptr || !tensor->shape.participants.all() || !groups_.decided()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor number %d cannot be attached: it was not declared by all ranks", attach.tensor));
  }
  trainer->Send(ipc::AttachedMessage{attach.tensor}, {tensor->contributions[groups_.LeadOf(rank)]});
  return absl::OkStatus();
}

absl::Status DeviceRanks::OnDeviceFailed(const Trainer& trainer,
                                         const ipc::DeviceFailedMessage& failed) {
  const auto rank = static_cast<uint32_t>(trainer.local_rank);
  state_->Fail(
      MakeFailure(FailureKind::kPeerLost,
                  absl::StrFormat("rank %s (local rank %d of node %d on %s) lost its GPU: %s",
                                  ranks_->RanksOf({rank}), rank, context_.identity->node.value(),
                                  ranks_->hostname(), failed.reason)));
  return absl::OkStatus();
}

void DeviceRanks::CheckMissing() {
  if (!state_->running() || groups_.AllJoined() || !groups_.AnyJoined()) return;
  const absl::Duration patience = context_.options->stall_timeout;
  const absl::Duration waited = context_.loop->Now() - first_at_;
  if (waited < patience) {
    if (waited >= kTellAfter) TellMissing();
    return;
  }
  state_->Fail(MakeFailure(
      FailureKind::kStalled,
      absl::StrFormat(
          "rank %s has not pushed anything from a GPU within --stall-timeout=%s, but other "
          "ranks of node %d have: all ranks of a node must do the same",
          ranks_->RanksOf(groups_.Missing()), absl::FormatDuration(patience),
          context_.identity->node.value())));
}

// The ranks that have named their GPU wait in their first push from it.
void DeviceRanks::TellMissing() const {
  const std::vector<uint32_t> missing = groups_.Missing();
  const ipc::ProgressMessage progress{
      absl::StrFormat("waiting for rank %s of this node to push its first tensor from a GPU",
                      ranks_->RanksOf(missing))};
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    if (std::count(missing.begin(), missing.end(), rank) == 0) ranks_->Tell(rank, progress);
  }
}

}  // namespace addend
