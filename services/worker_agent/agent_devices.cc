// The agent and trainers whose tensors are on GPUs: who aggregates with whom, when a rank brings
// its part to host memory, and which parts of a result it may fetch. What touches the GPU is done
// in the trainers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "services/worker_agent/agent.h"

namespace addend {
namespace {

constexpr size_t kGroupIdBytes = 128;
constexpr absl::Duration kSayAfter = absl::Seconds(5);

Layout EveryGpuCopies(uint32_t local_ranks, std::string why) {
  Layout layout;
  for (uint32_t rank = 0; rank < local_ranks; ++rank) layout.groups.push_back({rank});
  layout.why.push_back(std::move(why));
  return layout;
}

// A partition in the running round.
ipc::Message About(ipc::Type type, const Tensor& tensor, uint32_t partition) {
  ipc::Message message;
  message.type = type;
  message.tensor = tensor.number;
  message.round = tensor.rounds.round().value();
  message.offset = tensor.OffsetOf(partition);
  message.bytes = tensor.BytesOf(partition);
  return message;
}

}  // namespace

std::string Agent::RanksOf(const std::vector<uint32_t>& local_ranks) const {
  const uint32_t first = options_.node.value() * options_.local_size;
  return absl::StrJoin(local_ranks, ", ", [first](std::string* out, uint32_t local) {
    absl::StrAppend(out, first + local);
  });
}

absl::Status Agent::OnDevice(TrainerLink* trainer, std::string_view bus_id) {
  if (!failing_.ok()) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(
      devices_.Join(static_cast<uint32_t>(trainer->local_rank), std::string(bus_id)));
  first_device_at_ = std::min(first_device_at_, absl::Now());
  if (!devices_.AllJoined()) return absl::OkStatus();
  const absl::Status decided = DecideLayout();
  if (!decided.ok()) {
    FailJob(WithExitCode(decided, kExitMismatch), "mismatch", /*report=*/true);
    return absl::OkStatus();
  }
  spdlog::info("GPUs of this node aggregate by {}: {}", NameOf(devices_.layout().strategy),
               absl::StrJoin(devices_.layout().why, "; "));
  for (uint32_t rank = 0; rank < options_.local_size; ++rank) TellGroup(rank);
  return absl::OkStatus();
}

absl::Status Agent::DecideLayout() {
  // Not at the start: the driver may take a second to say what NVLink joins, and most agents have
  // no GPU.
  const absl::StatusOr<Topology> machine =
      options_.topology ? *options_.topology : ReadTopology(/*file=*/"");
  const absl::Status known =
      machine.ok() ? Restrict(*machine, devices_.bus_ids()).status() : machine.status();
  if (!known.ok() && !options_.intranode) {
    // Whatever the machine looks like, this is right, if not as fast as can be.
    spdlog::warn("the topology of this machine's GPUs is unknown ({}): --topology=FILE gives it{}",
                 Message(known), options_.gpudirect ? "; --gpudirect has no effect" : "");
    return devices_.Decide(EveryGpuCopies(options_.local_size, Message(known)));
  }
  ADDEND_RETURN_IF_ERROR(machine.status());
  ADDEND_ASSIGN_OR_RETURN(Layout layout,
                          ChooseLayout(*machine, devices_.bus_ids(), options_.intranode));
  if (options_.gpudirect) DecideDirect(*machine, &layout);
  return devices_.Decide(std::move(layout));
}

void Agent::DecideDirect(const Topology& machine, Layout* layout) {
  std::vector<std::string> nics;
  for (const auto& device : options_.rdma_devices) nics.push_back(device->name());
  const absl::StatusOr<uint32_t> rank =
      ChooseDirectRank(machine, devices_.bus_ids(), nics, *layout);
  if (!rank.ok()) {
    return spdlog::warn("--gpudirect has no effect: {}", Message(rank.status()));
  }
  direct_rank_ = *rank;
  if (!layout->roots.empty()) layout->roots = {*rank};
  layout->why.push_back(absl::StrFormat(
      "a NIC reads contributions from the GPU of local rank %d (--gpudirect)", *rank));
}

absl::Status Agent::OnDirect(TrainerLink* trainer, const ipc::Message& offer, UniqueFd dmabuf) {
  const auto it = by_number_.find(offer.tensor);
  if (!failing_.ok() || it == by_number_.end()) return absl::OkStatus();
  Tensor& tensor = *it->second;
  if (direct_rank_ != static_cast<uint32_t>(trainer->local_rank) || offer.bytes != tensor.bytes ||
      tensor.bytes < ipc::kDirectBytesMin || tensor.direct_range != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory of a GPU for tensor number %d, which is not this rank's to offer", offer.tensor));
  }
  if (!push_->reads_devices()) return absl::OkStatus();  // it has been told
  absl::StatusOr<std::shared_ptr<DeviceRange>> range = absl::ResourceExhaustedError(
      "the descriptor of its memory did not come: raise the limit of open files (ulimit -n)");
  if (dmabuf.valid()) range = DeviceRange::Reserve(std::move(dmabuf), tensor.bytes);
  absl::Status status = range.status();
  // All of them: any may be chosen for a payload.
  for (const auto& device : options_.rdma_devices) {
    if (!status.ok()) break;
    status = device->Register((*range)->memory(), rdma::Access::kSend).status();
  }
  if (status.ok()) {
    tensor.direct_range = *std::move(range);
  } else {
    StopReadingDevices(Message(status));
  }
  return absl::OkStatus();
}

// For the rest of the generation. What lies on the GPU is fetched.
void Agent::StopReadingDevices(const std::string& why) {
  if (!direct_rank_ || !push_->reads_devices()) return;
  push_->ReadDevices(false);
  spdlog::warn("no GPUDirect RDMA any more, contributions go through host memory: {}", why);
  ipc::Message message;
  message.type = ipc::Type::kDirect;
  if (ranks_[*direct_rank_] != nullptr) ranks_[*direct_rank_]->Send(message);
}

// Not before the plan is known; and not if all servers need host memory, where it would be a
// detour.
bool Agent::GoesDirect(const Tensor& tensor) const {
  if (tensor.direct_range == nullptr || !tensor.planned() || !push_->reads_devices()) return false;
  for (uint32_t partition = 0; partition < tensor.partitions(); ++partition) {
    if (tensor.owners[partition].link->TakesFromDevice(tensor.BytesOf(partition))) return true;
  }
  return false;
}

bool Agent::AskForHostCopy(const Tensor& tensor, uint32_t partition) {
  if (!direct_rank_ || ranks_[*direct_rank_] == nullptr) return false;
  ranks_[*direct_rank_]->Send(About(ipc::Type::kFetch, tensor, partition));
  return true;
}

absl::Status Agent::OnFetched(TrainerLink* trainer, const ipc::Message& fetched) {
  const auto it = by_number_.find(fetched.tensor);
  if (!failure_.ok() || it == by_number_.end()) return absl::OkStatus();  // it came too late
  if (direct_rank_ != static_cast<uint32_t>(trainer->local_rank)) {
    return absl::InvalidArgumentError("a copy from a GPU that is not read directly");
  }
  return host_copies_.OnFetched(it->second.get(), Round(fetched.round), fetched.offset,
                                fetched.bytes);
}

void Agent::TellGroup(uint32_t local_rank) {
  if (ranks_[local_rank] == nullptr) return;
  const ipc::Group group = devices_.GroupOf(local_rank);
  ipc::Message message;
  message.type = ipc::Type::kGroup;
  message.local_rank = static_cast<int32_t>(group.member);
  message.local_size = static_cast<int32_t>(group.members);
  message.flags = static_cast<uint16_t>((group.scatter ? ipc::kFlagScatter : 0) |
                                        (options_.deterministic_intranode ? ipc::kFlagOrdered : 0) |
                                        (direct_rank_ == local_rank ? ipc::kFlagDirect : 0));
  ranks_[local_rank]->Send(message, std::string_view(reinterpret_cast<const char*>(group.roots),
                                                     group.num_roots * sizeof(group.roots[0])));
}

absl::Status Agent::OnGroupId(TrainerLink* trainer, std::string_view id) {
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  if (!devices_.decided() || devices_.LeadOf(rank) != rank || id.size() != kGroupIdBytes) {
    return absl::InvalidArgumentError("an id of a group that is not this rank's to make");
  }
  ipc::Message message;
  message.type = ipc::Type::kGroupId;
  for (const uint32_t member : devices_.MembersOf(rank)) {
    if (member != rank && ranks_[member] != nullptr) ranks_[member]->Send(message, id);
  }
  return absl::OkStatus();
}

absl::Status Agent::OnAttach(TrainerLink* trainer, uint32_t number) {
  if (!failing_.ok()) return absl::OkStatus();
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  const auto it = by_number_.find(number);
  if (it == by_number_.end() || it->second->uses[rank] != Tensor::Use::kAttached ||
      !devices_.decided()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor number %d cannot be attached: it was not declared", number));
  }
  ipc::Message message;
  message.type = ipc::Type::kAttached;
  message.tensor = number;
  trainer->Send(message, {}, {it->second->contributions[devices_.LeadOf(rank)]});
  return absl::OkStatus();
}

void Agent::NoteDevicePush(const std::shared_ptr<Tensor>& tensor, uint32_t local_rank,
                           bool on_device) {
  if (!failing_.ok() || (!on_device && !devices_.decided())) return;
  const uint32_t lead = devices_.LeadOf(local_rank);
  if (on_device) tensor->device[local_rank] = {.used = true, .lead = lead, .staged = 0};
  const std::vector<uint32_t> members = devices_.MembersOf(local_rank);
  std::vector<uint32_t> from_host;
  for (const uint32_t member : members) {
    if (!tensor->rounds.HasPushed(member)) return;
    if (!tensor->device[member].used) from_host.push_back(member);
  }
  if (from_host.empty()) return staging_order_.Announce(tensor, lead);
  if (from_host.size() == members.size()) return;
  FailJob(WithExitCode(absl::FailedPreconditionError(absl::StrFormat(
                           "ranks %s aggregate on their GPUs, but tensor '%s' was pushed from host "
                           "memory by rank %s: all of them must push a tensor from the same place",
                           RanksOf(members), tensor->shape.name, RanksOf(from_host))),
                       kExitMismatch),
          "mismatch", /*report=*/true);
}

void Agent::TellContribute(Tensor* tensor, uint32_t lead) {
  ipc::Message message;
  message.type = ipc::Type::kContribute;
  message.tensor = tensor->number;
  message.round = tensor->rounds.round().value();
  const std::vector<uint32_t> members = devices_.MembersOf(lead);
  for (size_t member = 0; member < members.size(); ++member) {
    if (tensor->rounds.HasData(members[member])) message.request |= uint64_t{1} << member;
  }
  tensor->direct = message.request != 0 && GoesDirect(*tensor);
  if (tensor->direct) {
    tensor->on_host.assign(tensor->partitions(), false);
    message.flags = ipc::kFlagDirect;
  }
  for (const uint32_t member : members) {
    if (ranks_[member] != nullptr) ranks_[member]->Send(message);
  }
}

absl::Status Agent::OnStaged(TrainerLink* trainer, const ipc::Message& staged) {
  const auto it = by_number_.find(staged.tensor);
  if (!failure_.ok() || it == by_number_.end()) return absl::OkStatus();  // it came too late
  const std::shared_ptr<Tensor> tensor = it->second;
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  Tensor::DevicePush& push = tensor->device[rank];
  if (!push.used || staged.round != tensor->rounds.round().value() ||
      staged.bytes > tensor->bytes || staged.bytes <= push.staged) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes of tensor number %d staged in round %d, where %d of %d are in round %d",
        staged.bytes, staged.tensor, staged.round, push.staged, tensor->bytes,
        tensor->rounds.round().value()));
  }
  push.staged = staged.bytes;
  staging_->Advance(*tensor);
  const std::vector<uint32_t> members = devices_.MembersOf(rank);
  const bool all = std::all_of(members.begin(), members.end(), [&](uint32_t member) {
    return tensor->device[member].staged == tensor->bytes;
  });
  if (all) staging_order_.Done(*tensor, push.lead);
  return absl::OkStatus();
}

void Agent::TellArrived(const Tensor& tensor, uint32_t partition) {
  const ipc::Message message = About(ipc::Type::kArrived, tensor, partition);
  for (uint32_t rank = 0; rank < options_.local_size; ++rank) {
    if (tensor.device[rank].used && ranks_[rank] != nullptr) ranks_[rank]->Send(message);
  }
}

absl::Status Agent::OnDeviceFailed(TrainerLink* trainer, std::string_view why) {
  if (!failing_.ok()) return absl::OkStatus();
  const auto rank = static_cast<uint32_t>(trainer->local_rank);
  FailJob(WithExitCode(absl::UnavailableError(absl::StrFormat(
                           "rank %s (local rank %d of node %d on %s) lost its GPU: %s",
                           RanksOf({rank}), rank, options_.node.value(), options_.hostname, why)),
                       kExitTemporary),
          "peer_lost", /*report=*/true);
  return absl::OkStatus();
}

// Some ranks push from GPUs and wait for the others to do so too.
void Agent::CheckDevices(absl::Time now) {
  if (!failing_.ok() || devices_.AllJoined() || !devices_.AnyJoined()) return;
  const absl::Duration waited = now - first_device_at_;
  if (waited < options_.stall_timeout) {
    if (waited >= kSayAfter) TellMissingDevices();
    return;
  }
  FailJob(WithExitCode(
              absl::DeadlineExceededError(absl::StrFormat(
                  "rank %s has not pushed anything from a GPU within --stall-timeout=%s, but other "
                  "ranks of node %d have: all ranks of a node must do the same",
                  RanksOf(devices_.Missing()), absl::FormatDuration(options_.stall_timeout),
                  options_.node.value())),
              kExitTemporary),
          "stalled", /*report=*/true);
}

// Those who have named their GPU wait in their first push from it.
void Agent::TellMissingDevices() {
  const std::vector<uint32_t> missing = devices_.Missing();
  ipc::Message progress;
  progress.type = ipc::Type::kProgress;
  for (uint32_t rank = 0; rank < options_.local_size; ++rank) {
    if (ranks_[rank] == nullptr || std::count(missing.begin(), missing.end(), rank) > 0) continue;
    ranks_[rank]->Send(progress, absl::StrFormat("waiting for rank %s of this node to push its "
                                                 "first tensor from a GPU",
                                                 RanksOf(missing)));
  }
}

std::string Agent::DescribeUnstaged(const Tensor& tensor) const {
  std::vector<uint32_t> late;
  for (uint32_t rank = 0; rank < options_.local_size; ++rank) {
    const Tensor::DevicePush& push = tensor.device[rank];
    if (push.used && push.staged < tensor.bytes) late.push_back(rank);
  }
  return absl::StrFormat("rank %s of this node has pushed it, and its GPU has not finished it",
                         RanksOf(late));
}

}  // namespace addend
