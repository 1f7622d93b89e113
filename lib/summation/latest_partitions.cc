// The protocol of asynchronous partitions, at the owner. docs/recovery.md describes how the value
// is restored.
#include "lib/summation/latest_partitions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"

namespace addend {

void LatestPartitions::Add(std::shared_ptr<LatestPartition> partition) {
  const PartitionId id = partition->spec().id;
  if (partition->state() != LatestPartition::State::kOpen) waiting_.insert(id);
  job_->partitions += partitions_.emplace(id, std::move(partition)).second ? 1 : 0;
}

void LatestPartitions::TakeOver(PartitionId id, PlanVersion version) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end() || !it->second->TakeOver(version)) return;
  waiting_.insert(id);
  if (job_->spec.failed) it->second->Abort();
}

void LatestPartitions::HandOver(PartitionId id, PlanVersion next) {
  const auto it = partitions_.find(id);
  if (it != partitions_.end() && it->second->HandOver(next)) CloseIfDue(it->second.get());
}

void LatestPartitions::Drop(PartitionId id) {
  waiting_.erase(id);
  copied_.erase(id);
  auto node = partitions_.extract(id);
  if (node.empty()) return;
  --job_->partitions;
  context_->dropped.Add(std::move(node.mapped()));
}

void LatestPartitions::DropAll() {
  job_->partitions -= partitions_.size();
  waiting_.clear();
  copied_.clear();
  context_->dropped.Add(std::exchange(partitions_, {}));
}

void LatestPartitions::Abort(PartitionId id) {
  if (const auto it = partitions_.find(id); it != partitions_.end()) it->second->Abort();
}

void LatestPartitions::Lose(PartitionId id, NodeId node) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end() || it->second->IsLost(node)) return;
  if (it->second->Lose(node)) Restore(it->second.get());
  RequestPostponed(it->second.get());
}

std::vector<PartitionId> LatestPartitions::Ids() const {
  std::vector<PartitionId> ids;
  ids.reserve(partitions_.size());
  for (const auto& [id, partition] : partitions_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

const PartitionSpec* LatestPartitions::SpecOf(PartitionId id) const {
  const auto it = partitions_.find(id);
  return it == partitions_.end() ? nullptr : &it->second->spec();
}

// Null if the partition is not here, or not any more.
absl::StatusOr<std::shared_ptr<LatestPartition>> LatestPartitions::Find(
    const FrameHeader& header) const {
  if (const auto it = partitions_.find(header.partition); it != partitions_.end()) {
    ADDEND_RETURN_IF_ERROR(CheckFit(header, it->second->spec()));
    return it->second;
  }
  if (const PartitionSpec* const other = summed_(header.partition); other != nullptr) {
    ADDEND_RETURN_IF_ERROR(CheckFit(header, *other));
  }
  return nullptr;
}

absl::StatusOr<MutableBytes> LatestPartitions::Place(NodePort* node, const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<LatestPartition> partition, Find(header));
  if (header.type == FrameType::kAck ||
      (header.type == FrameType::kRecover &&
       header.payload_bytes != StampBytes(job_->spec.num_nodes))) {
    return absl::InvalidArgumentError("a report has a stamp, and nothing else has");
  }
  Landing::Placed& placed = node->landing().Begin();
  placed.latest = std::move(partition);
  if (placed.latest == nullptr) return MutableBytes();
  if (header.type != FrameType::kResult || header.encoding != Encoding::kRaw) {
    return node->landing().ScratchFor(header.payload_bytes, &placed);
  }
  if (placed.latest->state() != LatestPartition::State::kRestoring ||
      placed.latest->Holder() != node->node()) {
    return MutableBytes();
  }
  // The buffer becomes the value, without a copy.
  ADDEND_ASSIGN_OR_RETURN(placed.own, Arena::Create(header.payload_bytes));
  return placed.own->memory();
}

absl::Status LatestPartitions::OnFrame(NodePort* node, const FrameHeader& header, Payload payload) {
  Landing::Placed placed = node->TakePlaced(header);
  std::shared_ptr<LatestPartition>& partition = placed.latest;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, Find(header));
  }
  if (partition == nullptr) return absl::OkStatus();  // the node sends the frame again
  // Not known yet when the payload came: it was dropped, and the node sends the frame again.
  if (payload.bytes().size() != header.payload_bytes) return absl::OkStatus();
  const EncodedBytes content{payload.bytes(), header.encoding};
  ADDEND_RETURN_IF_ERROR(CheckContent(header, content, partition->spec()));
  absl::Status status;
  switch (header.type) {
    case FrameType::kContribution:
      status = OnUpdate(node, partition.get(), header, content);
      break;
    case FrameType::kRecover:
      status = OnReport(node, partition.get(), header, payload.bytes());
      break;
    case FrameType::kAck:
      OnSync(node, partition.get(), header);
      break;
    default:
      status = OnCopy(node, partition.get(), header, content, &placed.own);
      break;
  }
  node->landing().Reuse(&placed);
  return status;
}

absl::Status LatestPartitions::OnUpdate(NodePort* node, LatestPartition* partition,
                                        const FrameHeader& header, const EncodedBytes& update) {
  using State = LatestPartition::State;
  const State state = partition->state();
  // The node sends the update again when the value is restored.
  if (header.plan_version < partition->version() || state == State::kRecovering ||
      state == State::kRestoring) {
    return absl::OkStatus();
  }
  const Round applied = partition->Applied(node->node());
  if (header.round == applied) return SendLatest(node, partition, header.priority);
  if (header.round < applied) return absl::OkStatus();
  if (partition->aborted() || job_->spec.failed) {
    frames_.SendAborted(node, *partition, header.round);
    return absl::OkStatus();
  }
  if (state == State::kClosed) {
    frames_.SendMoved(node, *partition);
    return absl::OkStatus();
  }
  if (header.round != Next(applied)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("node %d pushed round %d of '%s' before it had the answer to round %d",
                        node->node().value(), header.round.value(), partition->spec().name.str(),
                        applied.value() + 1));
  }
  return Apply(node, partition, header, update);
}

absl::Status LatestPartitions::Apply(NodePort* node, LatestPartition* partition,
                                     const FrameHeader& header, const EncodedBytes& update) {
  const absl::Status applied = partition->Apply(node->node(), header.round, update);
  if (absl::IsResourceExhausted(applied) && partition->IsLent()) {
    partition->Postpone(node->node());
    return absl::OkStatus();
  }
  ADDEND_RETURN_IF_ERROR(applied);
  context_->stats.updates_applied.fetch_add(1, std::memory_order_relaxed);
  const size_t bytes = update.bytes.empty() ? 0 : partition->payload_bytes();
  context_->stats.payload_bytes_summed.fetch_add(bytes, std::memory_order_relaxed);
  job_->totals.payload_bytes += bytes;
  return SendLatest(node, partition, header.priority);
}

// The answer to the node's last update in the value. The stamp goes first: the node takes it for
// the stamp of the next answer.
absl::Status LatestPartitions::SendLatest(NodePort* node, LatestPartition* partition,
                                          int32_t priority) {
  FrameHeader answer = frames_.HeaderFor(FrameType::kResult, *partition);
  answer.round = partition->Applied(node->node());
  if (node->StillWaits(answer)) return absl::OkStatus();
  ADDEND_ASSIGN_OR_RETURN(const std::shared_ptr<const Arena> value, partition->Value());
  if (partition->HasFurtherCopies()) copied_.insert(partition->spec().id);
  FrameHeader header = frames_.HeaderFor(FrameType::kStamp, *partition);
  header.round = answer.round;
  header.priority = priority;
  const auto stamp =
      std::make_shared<const std::vector<std::byte>>(EncodeStamp(partition->stamp()));
  node->Push(header, *stamp, [stamp](absl::Status) {});
  answer.priority = priority;
  answer.uncompressed_bytes = static_cast<uint32_t>(partition->payload_bytes());
  node->PushOnce(
      answer, value->memory(),
      [self = std::weak_ptr<LatestPartitions*>(self_), value = std::shared_ptr<const Arena>(value),
       id = partition->spec().id](absl::Status) mutable {
        value.reset();
        if (const auto latest = self.lock()) (*latest)->OnCopySent(id);
      },
      [encoder = &context_->encoder, dtype = partition->spec().dtype,
       history = partition->encodings(),
       value] { return encoder->Encode(dtype, value->memory(), history.get(), {}); });
  return absl::OkStatus();
}

// Copies above the reserved copies stay for the next readers while some are lent, unless other jobs
// need the memory.
void LatestPartitions::OnCopySent(PartitionId id) {
  const auto it = partitions_.find(id);
  if (it == partitions_.end()) return;
  LatestPartition* const partition = it->second.get();
  if (!partition->IsLent() || job_->memory->over_part()) DropFurtherCopies(partition);
  RequestPostponed(partition);
}

void LatestPartitions::DropFurtherCopies(LatestPartition* partition) {
  partition->DropFurtherCopies();
  if (!partition->HasFurtherCopies()) copied_.erase(partition->spec().id);
}

// A copy of the value is free again: the first update that found no free copy is requested again. A
// node that is not connected says where it stands when it is back.
void LatestPartitions::RequestPostponed(LatestPartition* partition) {
  while (const auto postponed = partition->TakePostponed()) {
    NodePort* const node = job_->nodes.Find(*postponed);
    if (node != nullptr) return frames_.RequestContribution(node, *partition);
  }
}

absl::Status LatestPartitions::OnReport(NodePort* node, LatestPartition* partition,
                                        const FrameHeader& header, Bytes bytes) {
  using State = LatestPartition::State;
  if (header.plan_version != partition->version()) return absl::OkStatus();
  if (partition->state() == State::kOpen || partition->state() == State::kClosed) {  // repeated
    frames_.SendRecovered(node, *partition);
    if (partition->Applied(node->node()) <= header.round) return absl::OkStatus();
    return SendLatest(node, partition, header.priority);
  }
  Stamp stamp;  // without a payload the node has no copy
  if (!bytes.empty()) {
    ADDEND_ASSIGN_OR_RETURN(stamp, DecodeStamp(bytes, job_->spec.num_nodes));
  }
  if (partition->state() == State::kRestoring) {  // repeated
    if (partition->Holder() == node->node()) frames_.RequestResult(node, *partition);
    return absl::OkStatus();
  }
  ADDEND_ASSIGN_OR_RETURN(const bool complete,
                          partition->OnReport(node->node(), header.round, std::move(stamp)));
  if (complete) Restore(partition);
  return absl::OkStatus();
}

// Where a node stands after a reset of its link; of interest only after a hand-over.
void LatestPartitions::OnSync(NodePort* node, LatestPartition* partition,
                              const FrameHeader& header) {
  if (partition->state() != LatestPartition::State::kClosed ||
      header.plan_version >= partition->next_version()) {
    return;
  }
  if (partition->Applied(node->node()) > header.round) {
    // Without memory for the answer, the node asks again after the next reset of its link.
    SendLatest(node, partition, header.priority).IgnoreError();
  }
  frames_.SendMoved(node, *partition);
}

absl::Status LatestPartitions::OnCopy(NodePort* node, LatestPartition* partition,
                                      const FrameHeader& header, const EncodedBytes& copy,
                                      std::shared_ptr<Arena>* own) {
  if (partition->state() != LatestPartition::State::kRestoring ||
      partition->Holder() != node->node() || header.round != partition->Held(node->node()) ||
      header.plan_version != partition->version() || copy.bytes.size() != header.payload_bytes) {
    return absl::OkStatus();
  }
  std::shared_ptr<Arena> value;
  if (*own != nullptr && copy.raw()) {
    value = std::move(*own);
  } else {  // encoded, or a reference to the node's memory
    ADDEND_ASSIGN_OR_RETURN(value, Arena::Create(partition->payload_bytes()));
    Decode(copy, partition->spec().dtype, partition->spec().elements, value->memory().data());
  }
  partition->EndRestore(std::move(value));
  Open(partition);
  NoteRestored(*partition);
  return absl::OkStatus();
}

// All reports have arrived, or the holder is lost: requests the most recent copy.
void LatestPartitions::Restore(LatestPartition* partition) {
  partition->BeginRestore();
  if (partition->state() == LatestPartition::State::kOpen) {
    Open(partition);
    if (partition->LostUpdates() > 0) NoteRestored(*partition);
    return;
  }
  // A node reports again when its link is back.
  if (partition->state() == LatestPartition::State::kRecovering) {
    job_->ForEachNodeOf(partition->spec(), [&](NodeId id, NodePort* node) {
      if (partition->HasReported(id)) return;
      node->Close(absl::UnavailableError("a partition needs the node's report again"));
    });
    return;
  }
  NodePort* const holder = job_->nodes.Find(*partition->Holder());
  if (holder != nullptr) frames_.RequestResult(holder, *partition);
}

// The value is there: each node learns which of its updates the value includes, and gets the answer
// that it lacks. The nodes send the other updates again.
void LatestPartitions::Open(LatestPartition* partition) {
  waiting_.erase(partition->spec().id);
  job_->ForEachNodeOf(partition->spec(), [&](NodeId id, NodePort* node) {
    frames_.SendRecovered(node, *partition);
    if (partition->Applied(id) <= partition->Held(id)) return;
    const absl::Status sent = SendLatest(node, partition, INT32_MAX);
    if (!sent.ok()) node->Close(sent);  // the node reports again
  });
  CloseIfDue(partition);
}

// Logs a single line for all partitions that a change or a loss has brought here.
void LatestPartitions::NoteRestored(const LatestPartition& restored) {
  const uint64_t lost = restored.LostUpdates();
  ++restored_;
  lost_updates_ += lost;
  context_->stats.updates_lost.fetch_add(lost, std::memory_order_relaxed);
  if (!waiting_.empty()) return;
  spdlog::log(lost_updates_ == 0 ? spdlog::level::info : spdlog::level::warn,
              "job {}: {} asynchronous partition{} restored from the most recent copies of the "
              "nodes; {} update{} lost",
              job_->spec.id.value(), restored_, restored_ == 1 ? "" : "s", lost_updates_,
              lost_updates_ == 1 ? "" : "s");
  restored_ = 0;
  lost_updates_ = 0;
}

void LatestPartitions::CloseIfDue(LatestPartition* partition) {
  if (job_->spec.failed || !partition->CloseIfDue()) return;
  job_->ForEachNodeOf(partition->spec(),
                      [&](NodeId, NodePort* node) { frames_.SendMoved(node, *partition); });
}

void LatestPartitions::TrimCopies() {
  const std::vector<PartitionId> copied(copied_.begin(), copied_.end());
  for (const PartitionId id : copied) {
    const auto it = partitions_.find(id);
    if (it != partitions_.end()) DropFurtherCopies(it->second.get());
  }
}

// Only a partition that changes its owner waits for nodes.
void LatestPartitions::RollCall(size_t limit, std::vector<OpenRoundInfo>* out) const {
  if (job_->spec.failed) return;
  for (const PartitionId id : waiting_) {
    const auto it = partitions_.find(id);
    if (it == partitions_.end() || it->second->aborted()) continue;
    if (out->size() >= limit) return;
    out->push_back(Describe(*it->second));
  }
}

OpenRoundInfo LatestPartitions::Describe(const LatestPartition& partition) const {
  const bool recovering = partition.state() == LatestPartition::State::kRecovering;
  OpenRoundInfo info;
  info.job = job_->spec.id;
  info.tensor = partition.spec().id.tensor();
  info.name = partition.spec().name.str();
  info.partition = partition.spec().id.index();
  info.state = partition.Describe();
  info.round = Round(partition.stamp().updates);
  info.open_s = absl::ToDoubleSeconds(context_->now() - partition.waiting_since());
  for (uint32_t i = 0; i < job_->spec.num_nodes; ++i) {
    const NodeId node(i);
    if (!partition.spec().HasNode(node) || job_->spec.lost.contains(node)) continue;
    const bool there = recovering ? partition.HasReported(node) : node != partition.Holder();
    (there ? info.pushed : info.missing).push_back(node);
  }
  return info;
}

}  // namespace addend
