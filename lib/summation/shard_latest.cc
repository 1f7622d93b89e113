// A shard's partitions in asynchronous mode: updates are added when they come, and answered with
// the latest value; when the owner has changed, the most recent copy that a node holds is the
// value.
#include <utility>

#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/summation/shard.h"

namespace addend {

void Shard::AddPartition(JobId job, std::shared_ptr<LatestPartition> partition) {
  const PartitionId id = partition->spec().id;
  jobs_.at(job)->latest.emplace(id, std::move(partition));
}

FrameHeader Shard::HeaderFor(const NodeLink& link, const LatestPartition& partition,
                             FrameType type) const {
  return HeaderFor(*link.job(), partition.spec(), partition.version(), type);
}

absl::Status Shard::Take(NodeLink* link, LatestPartition* partition, const FrameHeader& update,
                         Bytes values) {
  ADDEND_RETURN_IF_ERROR(partition->Apply(link->node(), update.round, values));
  stats_.updates_applied.fetch_add(1, std::memory_order_relaxed);
  stats_.payload_bytes_summed.fetch_add(values.size(), std::memory_order_relaxed);
  link->job()->totals.payload_bytes += values.size();
  return SendLatest(link, partition, update.priority);
}

// The stamp arrives first: the node takes it for that of the next answer.
absl::Status Shard::SendLatest(NodeLink* link, LatestPartition* partition, int32_t priority) {
  ADDEND_ASSIGN_OR_RETURN(const std::shared_ptr<const Arena> value, partition->Value());
  FrameHeader header = HeaderFor(*link, *partition, FrameType::kStamp);
  header.round = partition->Applied(link->node());
  header.priority = priority;
  const auto stamp =
      std::make_shared<const std::vector<std::byte>>(EncodeStamp(partition->stamp()));
  link->Push(header, *stamp, [stamp](absl::Status) {});
  header.type = FrameType::kResult;
  header.uncompressed_bytes = static_cast<uint32_t>(partition->payload_bytes());
  link->PushResult(header, value->memory(), [value](absl::Status) {});
  return absl::OkStatus();
}

void Shard::SendRecovered(NodeLink* link, const LatestPartition& partition) {
  FrameHeader header = HeaderFor(*link, partition, FrameType::kRecover);
  header.flags = kFlagReply;
  header.round = partition.Applied(link->node());
  header.priority = INT32_MAX;
  link->Push(header);
}

void Shard::SendMoved(NodeLink* link, const LatestPartition& partition) {
  FrameHeader header = HeaderFor(*link, partition, FrameType::kMoved);
  header.plan_version = partition.next_version();
  header.round = partition.Applied(link->node());
  header.priority = INT32_MIN;  // behind the answer to that round
  link->Push(header);
}

void Shard::SendAborted(NodeLink* link, const LatestPartition& partition, Round round) {
  FrameHeader header = HeaderFor(*link, partition, FrameType::kAborted);
  header.round = round;
  link->Push(header);
}

void Shard::AskForCopy(NodeLink* link, const LatestPartition& partition) {
  FrameHeader header = HeaderFor(*link, partition, FrameType::kSendAgain);
  header.flags = kFlagResult;
  header.round = partition.Held(link->node());
  header.priority = INT32_MAX;
  link->Push(header);
}

void Shard::Restore(ShardJob* job, LatestPartition* partition) {
  partition->BeginRestore();
  if (partition->state() == LatestPartition::State::kOpen) {
    Open(job, partition);
    if (partition->LostUpdates() > 0) NoteRestored(job, *partition);
    return;
  }
  // A node whose link is broken reports again when it is back.
  NodeLink* const holder = job->links[partition->Holder()->value()];
  if (holder != nullptr) AskForCopy(holder, *partition);
}

void Shard::EndRestore(ShardJob* job, LatestPartition* partition, std::shared_ptr<Arena> copy) {
  partition->EndRestore(std::move(copy));
  Open(job, partition);
  NoteRestored(job, *partition);
}

void Shard::Open(ShardJob* job, LatestPartition* partition) {
  for (NodeLink* link : job->links) {
    if (link == nullptr) continue;
    SendRecovered(link, *partition);
    if (partition->Applied(link->node()) <= partition->Held(link->node())) continue;
    const absl::Status sent = SendLatest(link, partition, INT32_MAX);
    if (!sent.ok()) link->link()->Close(sent);  // it reports again
  }
  CloseIfDue(job, partition);
}

// One line for all that a change or a loss has brought here.
void Shard::NoteRestored(ShardJob* job, const LatestPartition& restored) {
  const uint64_t lost = restored.LostUpdates();
  ++job->restored;
  job->lost_updates += lost;
  stats_.updates_lost.fetch_add(lost, std::memory_order_relaxed);
  for (const auto& [id, partition] : job->latest) {
    const auto state = partition->state();
    if (state == LatestPartition::State::kRecovering ||
        state == LatestPartition::State::kRestoring) {
      return;
    }
  }
  spdlog::log(job->lost_updates == 0 ? spdlog::level::info : spdlog::level::warn,
              "job {}: {} asynchronous partition{} restored from the most recent copies of the "
              "nodes; {} update{} lost",
              job->spec.id.value(), job->restored, job->restored == 1 ? "" : "s", job->lost_updates,
              job->lost_updates == 1 ? "" : "s");
  job->restored = 0;
  job->lost_updates = 0;
}

void Shard::CloseIfDue(ShardJob* job, LatestPartition* partition) {
  if (job->spec.failed || !partition->CloseIfDue()) return;
  for (NodeLink* link : job->links) {
    if (link != nullptr) SendMoved(link, *partition);
  }
}

}  // namespace addend
