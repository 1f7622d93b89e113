// A summation server's end of the link to one node, in asynchronous mode.
#include <cstring>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/summation/node_link.h"
#include "lib/summation/shard.h"

namespace addend {

bool NodeLink::IsAboutLatest(const FrameHeader& header) {
  if (header.op != ReduceOp::kAccumulate) return false;
  return header.type == FrameType::kContribution || header.type == FrameType::kRecover ||
         header.type == FrameType::kAck || header.type == FrameType::kResult;
}

absl::StatusOr<std::shared_ptr<LatestPartition>> NodeLink::FindLatest(
    const FrameHeader& header) const {
  ADDEND_RETURN_IF_ERROR(CheckSender(header));
  return FindAmong(job_->latest, job_->partitions, header);
}

absl::StatusOr<MutableBytes> NodeLink::PlaceLatest(const FrameHeader& header) {
  ADDEND_ASSIGN_OR_RETURN(std::shared_ptr<LatestPartition> partition, FindLatest(header));
  if (header.type == FrameType::kAck ||
      (header.type == FrameType::kRecover &&
       header.payload_bytes != StampBytes(job_->spec.num_nodes))) {
    return absl::InvalidArgumentError("a report has a stamp, and nothing else has");
  }
  Placed& placed = placed_.emplace_back();
  placed.latest = std::move(partition);
  if (placed.latest == nullptr) return MutableBytes();
  if (header.type != FrameType::kResult) return ScratchFor(header.payload_bytes, &placed);
  // A copy becomes the value as it is.
  if (placed.latest->state() != LatestPartition::State::kRestoring) return MutableBytes();
  ADDEND_ASSIGN_OR_RETURN(placed.own, Arena::Create(header.payload_bytes));
  return placed.own->memory();
}

absl::Status NodeLink::OnLatestFrame(const FrameHeader& header, Payload payload) {
  Placed placed = TakePlaced(header);
  std::shared_ptr<LatestPartition>& partition = placed.latest;
  if (partition == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(partition, FindLatest(header));
  }
  if (partition == nullptr) return absl::OkStatus();  // it has gone: all is sent again
  absl::Status status;
  switch (header.type) {
    case FrameType::kContribution:
      status = OnUpdate(partition.get(), header, payload.bytes());
      break;
    case FrameType::kRecover:
      status = OnLatestReport(partition.get(), header, payload.bytes());
      break;
    case FrameType::kAck:
      OnLatestSync(partition.get(), header);
      break;
    default:
      return OnCopy(partition.get(), header, payload.bytes(), std::move(placed.own));
  }
  if (placed.own != nullptr) spare_.push_back(std::move(placed.own));
  return status;
}

absl::Status NodeLink::OnUpdate(LatestPartition* partition, const FrameHeader& header,
                                Bytes update) {
  using State = LatestPartition::State;
  const State state = partition->state();
  // What comes before the value is there is sent again.
  if (header.plan_version < partition->version() || state == State::kRecovering ||
      state == State::kRestoring) {
    return absl::OkStatus();
  }
  const Round applied = partition->Applied(node_);
  if (header.round == applied) return shard_->SendLatest(this, partition, header.priority);
  if (header.round < applied) return absl::OkStatus();
  if (partition->aborted()) {
    shard_->SendAborted(this, *partition, header.round);
    return absl::OkStatus();
  }
  if (state == State::kClosed) {
    shard_->SendMoved(this, *partition);
    return absl::OkStatus();
  }
  return shard_->Take(this, partition, header, update);
}

absl::Status NodeLink::OnLatestReport(LatestPartition* partition, const FrameHeader& header,
                                      Bytes bytes) {
  using State = LatestPartition::State;
  if (header.plan_version != partition->version()) return absl::OkStatus();
  if (partition->state() == State::kOpen || partition->state() == State::kClosed) {  // repeated
    shard_->SendRecovered(this, *partition);
    if (partition->Applied(node_) <= header.round) return absl::OkStatus();
    return shard_->SendLatest(this, partition, header.priority);
  }
  Stamp stamp{.updates = 0, .applied = std::vector<uint64_t>(job_->spec.num_nodes, 0)};
  if (!bytes.empty()) {
    ADDEND_ASSIGN_OR_RETURN(stamp, DecodeStamp(bytes, job_->spec.num_nodes));
  }
  if (partition->state() == State::kRestoring) {  // repeated
    if (partition->Holder() == node_) shard_->AskForCopy(this, *partition);
    return absl::OkStatus();
  }
  ADDEND_ASSIGN_OR_RETURN(const bool complete,
                          partition->OnReport(node_, header.round, std::move(stamp)));
  if (complete) shard_->Restore(job_, partition);
  return absl::OkStatus();
}

void NodeLink::OnLatestSync(LatestPartition* partition, const FrameHeader& header) {
  if (partition->state() != LatestPartition::State::kClosed ||
      header.plan_version >= partition->next_version()) {
    return;
  }
  if (partition->Applied(node_) > header.round) {
    // Without memory for it the node asks again when its link is reset.
    shard_->SendLatest(this, partition, header.priority).IgnoreError();
  }
  shard_->SendMoved(this, *partition);
}

absl::Status NodeLink::OnCopy(LatestPartition* partition, const FrameHeader& header, Bytes copy,
                              std::shared_ptr<Arena> own) {
  if (partition->state() != LatestPartition::State::kRestoring || partition->Holder() != node_ ||
      header.round != partition->Held(node_) || header.plan_version != partition->version() ||
      copy.size() != partition->payload_bytes()) {
    return absl::OkStatus();
  }
  if (own == nullptr) {  // by reference
    ADDEND_ASSIGN_OR_RETURN(own, Arena::Create(copy.size()));
    std::memcpy(own->memory().data(), copy.data(), copy.size());
  }
  shard_->EndRestore(job_, partition, std::move(own));
  return absl::OkStatus();
}

}  // namespace addend
