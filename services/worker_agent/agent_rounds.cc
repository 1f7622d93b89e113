// The agent's rounds: start, results, the end, and stalls.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/exit_codes.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"
#include "lib/trace/clock.h"
#include "lib/wire/stamp.h"
#include "services/worker_agent/agent.h"

namespace addend {
namespace {

constexpr absl::Duration kStallWarnings[] = {absl::Seconds(10), absl::Seconds(60)};

}  // namespace

// Every link gets the part of the node's link that it carries in a round of all tensors: what the
// servers elsewhere sum, and the results of the colocated one.
void Agent::LimitInFlight() {
  owners_changed_ = false;
  const size_t limit = convoy_.limits().contributions_in_flight;
  if (limit == SendLimits::kUnlimited) return;
  std::map<ServerLink*, double> carried;
  for (const auto& [id, tensor] : by_id_) {
    for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
      carried[tensor->owners[partition].link] += static_cast<double>(tensor->BytesOf(partition));
    }
  }
  double sent = 0;
  for (const auto& [link, bytes] : carried) {
    sent += link->server() == colocated_server_ ? (nodes_ - 1) * bytes : bytes;
  }
  if (sent <= 0) return;
  for (const auto& [link, bytes] : carried) link->LimitInFlight(PartInFlight(limit, bytes / sent));
}

void Agent::TryStart(const std::shared_ptr<Tensor>& tensor) {
  TensorRounds& rounds = tensor->rounds;
  if (!tensor->planned() || rounds.running() || !rounds.AllPushed() || !failing_.ok()) return;
  // An error here would leave the other nodes waiting: it ends the job.
  if (absl::Status status = tensor->PrepareContribution(); !status.ok()) {
    return FailJob(status, "mismatch", /*report=*/true);
  }
  if (owners_changed_) LimitInFlight();
  rounds.Start(tensor->partitions());
  journal_.RoundStarts(*tensor);
  if (tensor->partitions() == 0) return Complete(tensor.get());
  const std::vector<uint64_t> places = tensor->PlacesSideBySide();
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    pipeline_->Begin({.tensor = tensor,
                      .partition = partition,
                      .round = rounds.round(),
                      .priority = tensor->priority,
                      .place = stream_bytes_ + places[partition],
                      .stage = 0});
  }
  stream_bytes_ += tensor->bytes;
}

void Agent::BringAndSend(const Task& task) {
  const PartitionId partition(task.tensor->id, task.partition);
  const auto [unsent, is_new] = unsent_.try_emplace(partition, task);
  unsent->second.priority = std::max(unsent->second.priority, task.priority);
  if (!is_new) return;
  host_copies_.Bring(task.tensor, task.partition, [this, partition](bool there) {
    const auto node = unsent_.extract(partition);
    if (node.empty()) return;
    const Task& unsent = node.mapped();
    if (!unsent.tensor->rounds.Wants(unsent.partition, unsent.round)) return;
    if (there) return push_->Send(unsent);
    FailJob(WithExitCode(
                absl::UnavailableError(absl::StrFormat(
                    "rank %s has ended before its contribution to round %d of tensor '%s' was read "
                    "from its GPU",
                    RanksOf({*direct_rank_}), unsent.round.value(), unsent.tensor->shape.name)),
                kExitTemporary),
            "peer_lost", /*report=*/true);
  });
}

// Only the owner is listened to: once this node has told a new owner what it holds, a result of the
// former one would make that untrue (M_ANY_SERVER in spec/recovery.pml).
std::shared_ptr<Tensor> Agent::FindOwned(const ServerLink* link, const FrameHeader& header) const {
  if (header.generation != identity_.generation || header.job != identity_.job) return nullptr;
  const auto it = by_id_.find(header.partition.tensor());
  if (it == by_id_.end() || header.partition.index() >= it->second->partitions() ||
      it->second->owners[header.partition.index()].link != link) {
    return nullptr;
  }
  return it->second;
}

// The tensor that waits for exactly this result, or null.
Tensor* Agent::Expecting(const ServerLink* link, const FrameHeader& header) const {
  const std::shared_ptr<Tensor> tensor = FindOwned(link, header);
  if (tensor == nullptr || !tensor->rounds.Wants(header.partition.index(), header.round)) {
    return nullptr;
  }
  return tensor.get();
}

MutableBytes Agent::RoomForResult(const ServerLink* link, const FrameHeader& header) {
  Tensor* const tensor = Expecting(link, header);
  if (tensor == nullptr || header.payload_bytes != tensor->BytesOf(header.partition.index()))
    return {};
  tensor->results->reads()->load(std::memory_order_acquire);
  PartitionTimes& way = tensor->way[header.partition.index()];
  if (way.first_in == 0) way.first_in = TraceNow();
  return tensor->ResultSlot(tensor->rounds.round())
      .subspan(tensor->OffsetOf(header.partition.index()), header.payload_bytes);
}

void Agent::OnResult(const ServerLink* link, const FrameHeader& header, Bytes result) {
  const MutableBytes room = RoomForResult(link, header);
  if (room.empty()) return;
  if (result.data() != room.data()) {
    std::memcpy(room.data(), result.data(), result.size());
    copied_bytes_ += result.size();
  }
  Tensor& tensor = *by_id_.at(header.partition.tensor());
  if (tensor.asynchronous()) tensor.stamps[header.partition.index()].Take();
  tensor.way[header.partition.index()].last_in = TraceNow();
  SendDigest(tensor, header.partition.index(), header.round);
  DeliverWhenFetched(link, header);
}

void Agent::DeliverWhenFetched(const ServerLink* link, const FrameHeader& header) {
  const std::shared_ptr<Tensor> tensor = by_id_.at(header.partition.tensor());
  const uint32_t partition = header.partition.index();
  const bool finite = !(header.flags & kFlagNonFinite);
  const auto deliver = [this, tensor, partition, finite, id = header.partition](bool there) {
    if (!finite && there) NoteNonFinite(*tensor, partition);
    pull_->Arrived(id);
  };
  if (!host_copies_.Awaits(*tensor, partition) && (finite || tensor->IsOnHost(partition))) {
    return deliver(true);
  }
  // By then a new owner may have been told that this node does not hold the result: it comes again.
  host_copies_.Bring(tensor, partition, [this, link, header, deliver](bool there) {
    const Tensor* const expecting = Expecting(link, header);
    if (expecting != nullptr && !expecting->owners[header.partition.index()].reported) {
      deliver(there);
    }
  });
}

MutableBytes Agent::RoomForStamp(const ServerLink* link, const FrameHeader& header) {
  Tensor* const tensor = Expecting(link, header);
  if (tensor == nullptr || !tensor->asynchronous() ||
      header.payload_bytes != StampBytes(options_.num_nodes)) {
    return {};
  }
  std::vector<std::byte>& coming = tensor->stamps[header.partition.index()].coming;
  coming.resize(header.payload_bytes);
  return coming;
}

void Agent::OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) {
  const MutableBytes room = RoomForStamp(link, header);
  if (!room.empty() && room.data() != stamp.data()) {
    std::memcpy(room.data(), stamp.data(), stamp.size());
  }
}

void Agent::OnSendAgain(const ServerLink* link, const FrameHeader& header) {
  if (header.flags & kFlagResult) return SendResult(link, header);
  if (Expecting(link, header) == nullptr) return;
  const std::shared_ptr<Tensor>& tensor = by_id_.at(header.partition.tensor());
  // Everybody waits for it.
  push_->Send({.tensor = tensor,
               .partition = header.partition.index(),
               .round = header.round,
               .priority = INT32_MAX,
               .place = 0,
               .stage = 0});
}

void Agent::Deliver(const Task& task) {
  TellArrived(*task.tensor, task.partition);
  if (task.tensor->rounds.OnResult(task.partition)) Complete(task.tensor.get());
}

void Agent::Complete(Tensor* tensor) {
  ipc::Message message;
  message.type = ipc::Type::kResult;
  message.tensor = tensor->number;
  message.round = tensor->rounds.round().value();
  journal_.RoundEnds(tensor);
  tensor->rounds.Finish();
  std::fill(tensor->device.begin(), tensor->device.end(), Tensor::DevicePush{});
  tensor->direct = false;
  tensor->open_since = absl::InfiniteFuture();
  tensor->warnings = 0;
  ++rounds_;
  for (TrainerLink* trainer : ranks_) {
    if (trainer != nullptr) trainer->Send(message);
  }
  EndIfDecided();
}

void Agent::FailTensor(Tensor* tensor, absl::Status why, const std::string& kind) {
  if (!tensor->error.ok()) return;
  tensor->error = std::move(why);
  if (tensor->rounds.running()) journal_.RoundFails(*tensor);
  ipc::Message message;
  message.type = ipc::Type::kResult;
  message.tensor = tensor->number;
  message.round = tensor->rounds.round().value();
  message.code = tensor->error_code = TrainerCode(tensor->error, kind);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank] != nullptr && tensor->rounds.HasPushed(rank)) {
      ranks_[rank]->Send(message, Message(tensor->error));
    }
  }
  tensor->open_since = absl::InfiniteFuture();
  EndIfDecided();
}

std::string Agent::DescribeStall(const Tensor& tensor) const {
  const std::string head =
      absl::StrFormat("round %d of tensor '%s' is open for %.0f s: ", tensor.rounds.round().value(),
                      tensor.shape.name, absl::ToDoubleSeconds(absl::Now() - tensor.open_since));
  if (!tensor.rounds.AllPushed()) {
    std::vector<uint32_t> ranks;
    for (const uint32_t local : tensor.rounds.Missing()) {
      ranks.push_back(options_.node.value() * options_.local_size + local);
    }
    return head +
           absl::StrFormat("rank %s of this node has not pushed it", absl::StrJoin(ranks, ", "));
  }
  if (tensor.StagedBytes() < tensor.bytes) return head + DescribeUnstaged(tensor);
  if (host_copies_.AwaitsAnyOf(tensor)) {
    return head + absl::StrFormat("the GPU of rank %s has not copied a part of it to host memory",
                                  RanksOf({*direct_rank_}));
  }
  if (!tensor.planned()) return head + "another node has not declared it";
  return head +
         absl::StrFormat(
             "this node has pushed it, and another node has not ('addendctl why %s' names it)",
             options_.job);
}

void Agent::CheckStalls() {
  loop_->RunAfter(absl::Seconds(1), [this] { CheckStalls(); });
  DropRetiredLinks();
  const absl::Time now = absl::Now();
  RefuseStalledInits(now);
  CheckDevices(now);
  for (const auto& [number, tensor] : by_number_) {
    if (tensor->open_since == absl::InfiniteFuture() || !failing_.ok()) continue;
    const absl::Duration open = now - tensor->open_since;
    if (open >= options_.stall_timeout) {
      return FailJob(
          WithExitCode(absl::DeadlineExceededError(DescribeStall(*tensor)), kExitTemporary),
          "stalled",
          /*report=*/true);
    }
    if (tensor->warnings < 2 && open >= kStallWarnings[tensor->warnings]) {
      ++tensor->warnings;
      spdlog::warn("{}", DescribeStall(*tensor));
      NoteIncident("stall", DescribeStall(*tensor));
    }
  }
}

}  // namespace addend
