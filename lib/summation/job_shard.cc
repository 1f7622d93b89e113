// The orders of the scheduler, and the way of a frame to its partition.
#include "lib/summation/job_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

namespace addend {

JobShard::JobShard(const JobSpec& spec, std::shared_ptr<JobMemory> memory, JobTotals totals,
                   ShardContext* context)
    : context_(context),
      state_{.server = context->server,
             .spec = spec,
             .memory = std::move(memory),
             .totals = std::move(totals),
             .nodes = {}},
      summed_(&state_, context, [this](PartitionId id) { return latest_.SpecOf(id); }),
      latest_(&state_, context, [this](PartitionId id) { return summed_.SpecOf(id); }) {}

bool JobShard::IsSameGeneration(const JobSpec& spec) const {
  return state_.spec.generation == spec.generation && state_.spec.key == spec.key;
}

void JobShard::Update(const JobSpec& spec) {
  state_.spec.plan_version = spec.plan_version;
  for (const auto& [server, peer] : spec.peers) state_.spec.peers[server] = peer;
  if (spec.failed && !state_.spec.failed) state_.spec.failed = next_.failed = true;
  for (const NodeId node : spec.lost) {
    if (!state_.spec.lost.insert(node).second) continue;
    Disconnect(node);
    next_.lost.push_back(node);
    // A relay does not follow losses: the owners recover its partitions.
    if (relayed_ != nullptr) relayed_->DropAll();
  }
  if (!walk_.has_value()) Continue();
}

void JobShard::Disconnect(NodeId id) {
  NodePort* const node = state_.nodes.Find(id);
  if (node == nullptr) return;
  state_.nodes.Erase(id);
  node->Leave(absl::AbortedError("the node is not in this generation any more"));
}

// One list of ids at a time, however many nodes are lost. Partitions that are added later know the
// failure and the losses from their specification. The ids are taken from the back: open rounds,
// for which ranks wait, come first.
bool JobShard::BeginWalk() {
  if (!next_.failed && next_.lost.empty()) return false;
  walk_ = std::exchange(next_, Walk());
  walk_->summed = summed_.Ids();
  walk_->latest = latest_.Ids();
  return true;
}

void JobShard::Continue() {
  for (size_t left = kAtOnce; walk_.has_value() || BeginWalk();) {
    std::vector<PartitionId>& ids = walk_->summed.empty() ? walk_->latest : walk_->summed;
    if (ids.empty()) {
      walk_.reset();
      continue;
    }
    if (left == 0) break;
    Reach(*walk_, ids.back(), &ids == &walk_->summed);
    ids.pop_back();
    left -= std::min(left, std::max<size_t>(1, walk_->lost.size()));
  }
  if (!walk_.has_value()) return;
  context_->defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Continue();
  });
}

void JobShard::Reach(const Walk& walk, PartitionId id, bool summed) {
  if (walk.failed) summed ? summed_.Abort(id) : latest_.Abort(id);
  for (const NodeId node : walk.lost) {
    summed ? summed_.Lose(id, node) : latest_.Lose(id, node);
  }
}

// A scheduler that has lost writes may have forgotten lost nodes: the partition's specification
// lacks them then, and their later loss would be no news.
void JobShard::Add(std::shared_ptr<Partition> partition) {
  const PartitionId id = partition->spec().id;
  summed_.Add(std::move(partition));
  for (const NodeId node : state_.spec.lost) summed_.Lose(id, node);
}

void JobShard::Add(std::shared_ptr<LatestPartition> partition) {
  const PartitionId id = partition->spec().id;
  latest_.Add(std::move(partition));
  for (const NodeId node : state_.spec.lost) latest_.Lose(id, node);
}

void JobShard::Add(std::shared_ptr<RelayedPartition> partition) {
  if (context_->outgoing == nullptr) return;
  if (relayed_ == nullptr) {
    relayed_ = std::make_unique<RelayedPartitions>(&state_, context_);
    if (encrypts_) relayed_->Encrypt();
  }
  relayed_->Add(std::move(partition));
}

void JobShard::TakeOver(PartitionId id, PlanVersion version, bool handed_over) {
  latest_.TakeOver(id, version);
  summed_.TakeOver(id, version, handed_over);
}

void JobShard::HandOver(TensorId tensor, const std::set<uint32_t>& partitions, PlanVersion next) {
  for (const uint32_t index : partitions) {
    latest_.HandOver(PartitionId(tensor, index), next);
    summed_.HandOver(PartitionId(tensor, index), next);
  }
}

// A payload must not arrive after its partition is dropped: the partitions of a colocated server
// lie in memory of its node, where the results of the next owner will land.
void JobShard::Drop(TensorId tensor, const std::set<uint32_t>& partitions) {
  for (const auto& [id, node] : state_.nodes) {
    if (!node->landing().IsReceiving(tensor, partitions)) continue;
    node->Close(absl::UnavailableError("a partition has another owner"));
  }
  for (const uint32_t index : partitions) {
    summed_.Drop(PartitionId(tensor, index));
    latest_.Drop(PartitionId(tensor, index));
  }
}

// The payloads that are being received keep their partitions.
void JobShard::DropRelayed(TensorId tensor, const std::set<uint32_t>& partitions) {
  if (relayed_ == nullptr) return;
  for (const uint32_t index : partitions) relayed_->Drop(PartitionId(tensor, index));
  if (relayed_->empty()) relayed_.reset();  // its links would be made again and again
}

void JobShard::LimitInFlight(size_t bytes, size_t sums) {
  if (relayed_ != nullptr) relayed_->LimitInFlight(sums);
  in_flight_bytes_ = bytes;
  for (const auto& [id, node] : state_.nodes) node->LimitInFlight(bytes);
}

void JobShard::TrimEarly() {
  if (!state_.memory->over_part()) return;
  latest_.TrimCopies();
  summed_.TrimEarly();
  if (relayed_ != nullptr) relayed_->TrimEarly();
}

// Links first: after Close() nothing is read into the accumulators any more.
void JobShard::End(const absl::Status& why) {
  for (const auto& [id, node] : state_.nodes) node->Leave(why);
  state_.nodes = {};
  summed_.DropAll();
  latest_.DropAll();
  if (relayed_ != nullptr) relayed_->DropAll();
  context_->auditor.ForgetJob(state_.spec.id);
}

absl::Status JobShard::CheckClaim(const auth::Claim& claim) const {
  const JobSpec& spec = state_.spec;
  const bool known = IsRelay(claim.node)
                         ? spec.peers.contains(ServerOf(claim.node))
                         : claim.node.value() < spec.num_nodes && !spec.lost.contains(claim.node);
  if (claim.generation != spec.generation || !known) {
    // A temporary failure: the peer, or this server, will learn of the others from the scheduler.
    return WithKind(
        absl::PermissionDeniedError(absl::StrFormat(
            "%s of generation %d does not belong to job %d (any more), which is in generation "
            "%d with %d nodes",
            Describe(claim.node), claim.generation.value(), claim.job.value(),
            spec.generation.value(), spec.num_nodes)),
        FailureKind::kTemporary);
  }
  return absl::OkStatus();
}

absl::Status JobShard::Admit(NodePort* node, const auth::Claim& claim, bool encrypt) {
  ADDEND_RETURN_IF_ERROR(CheckClaim(claim));
  if (encrypt && !std::exchange(encrypts_, true) && relayed_ != nullptr) relayed_->Encrypt();
  if (NodePort* const former = state_.nodes.Find(claim.node); former != nullptr) {
    former->Leave(absl::AbortedError("the node has connected anew"));
  }
  state_.nodes.Set(claim.node, node);
  node->Join(&state_, claim.node);
  return absl::OkStatus();
}

void JobShard::OnLeft(NodePort* node, const absl::Status& why) {
  spdlog::info("the link of {} of job {} has closed: {}", node->Name(), state_.spec.id.value(),
               Message(why));
  if (state_.nodes.Find(node->node()) == node) state_.nodes.Erase(node->node());
  if (node->by_reference()) {
    summed_.ForgetReferences(node->node());
    if (relayed_ != nullptr) relayed_->ForgetReferences(node->node());
  }
  context_->auditor.ForgetNode(state_.spec.id, node->node());
  summed_.OnReceiverLeft(node->landing().Abandon());
}

bool JobShard::IsAboutLatest(const FrameHeader& header) {
  if (header.op != ReduceOp::kAccumulate) return false;
  return header.type == FrameType::kContribution || header.type == FrameType::kRecover ||
         header.type == FrameType::kAck || header.type == FrameType::kResult;
}

// A relay sends sums, and says where it stands.
absl::Status JobShard::CheckRelay(const FrameHeader& header) {
  const bool relays = IsRelay(NodeId(header.sender));
  const bool sum = header.type == FrameType::kPartialSum;
  if (sum == relays || (relays && header.type == FrameType::kAck)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a %s frame of %s", addend::Name(header.type),
                      relays ? "a summation server that relays contributions" : "a node"));
}

bool JobShard::IsRelayed(const FrameHeader& header) const {
  return relayed_ != nullptr && relayed_->IsAbout(header);
}

absl::StatusOr<MutableBytes> JobShard::Place(NodePort* node, const FrameHeader& header) {
  ADDEND_RETURN_IF_ERROR(CheckRelay(header));
  if (header.type == FrameType::kContribution || header.type == FrameType::kPartialSum) {
    if (IsRelayed(header)) return relayed_->Place(node, header);
  }
  if (header.type == FrameType::kPartialSum) return summed_.PlaceSum(node, header);
  if (header.type == FrameType::kAudit) return PlaceAudit(node, header);
  if (IsAboutLatest(header)) return latest_.Place(node, header);
  if (header.type == FrameType::kContribution || header.type == FrameType::kResult) {
    return summed_.Place(node, header);
  }
  return absl::UnimplementedError(absl::StrFormat(
      "this summation server does not take a %s frame with a payload", Name(header.type)));
}

absl::Status JobShard::OnFrame(NodePort* node, const FrameHeader& header, Payload payload) {
  ADDEND_RETURN_IF_ERROR(CheckRelay(header));
  if (header.type == FrameType::kContribution || header.type == FrameType::kPartialSum) {
    // What a dropped partition was receiving counts no more.
    if (IsRelayed(header)) return relayed_->OnContribution(node, header, std::move(payload));
  }
  if (header.type == FrameType::kAck && IsRelayed(header)) return relayed_->OnSync(node, header);
  if (IsAboutLatest(header)) return latest_.OnFrame(node, header, std::move(payload));
  switch (header.type) {
    case FrameType::kContribution:
      return summed_.OnContribution(node, header, std::move(payload));
    case FrameType::kPartialSum:
      return summed_.OnSum(node, header, std::move(payload));
    case FrameType::kRecover:
      return summed_.OnReport(node, header);
    case FrameType::kAck:
      return summed_.OnSync(node, header);
    case FrameType::kResult:
      return summed_.OnSupplied(node, header, std::move(payload));
    case FrameType::kAudit:
      return OnAudit(node, header, std::move(payload));
    case FrameType::kAuditDigest:
      if (CanAudit()) context_->auditor.OnDigest(header, context_->now());
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(absl::StrFormat(
          "this version of the summation server does not take %s frames", Name(header.type)));
  }
}

absl::StatusOr<MutableBytes> JobShard::PlaceAudit(NodePort* node, const FrameHeader& header) {
  Landing::Placed& placed = node->landing().Begin();
  if (RawBytesOf(header) % SizeOf(header.dtype) != 0) return MutableBytes();
  return Landing::EarlyRoomFor(header.payload_bytes, context_->early_buffers.get(), state_.memory,
                               &placed);
}

// A contribution to be summed a second time. Without a buffer for it the audit is abandoned. With a
// lost node an audit would wait for ever, or divide by another number of nodes than the owner.
absl::Status JobShard::OnAudit(NodePort* node, const FrameHeader& header, Payload payload) {
  Landing::Placed placed = node->TakePlaced(header);
  const bool empty = header.flags & kFlagEmpty;
  if (empty || payload.by_reference()) {
    placed.early = std::make_unique<EarlyContribution>(std::move(payload), empty);
  } else if (placed.early != nullptr) {
    placed.early->SetEncoding(header.encoding);
  }
  if (!CanAudit()) return absl::OkStatus();
  const JobSpec& spec = state_.spec;
  if (header.contributors > spec.num_nodes || header.detail > spec.ranks() ||
      (header.contributors == 0) != (header.detail == 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an audit of %d nodes with %d ranks, in a job of %d nodes with %d ranks",
                        header.contributors, header.detail, spec.num_nodes, spec.ranks()));
  }
  const bool of_all = header.contributors == 0;
  context_->auditor.OnContribution(header, of_all ? spec.num_nodes : header.contributors,
                                   of_all ? spec.ranks() : header.detail, std::move(placed.early),
                                   context_->now());
  return absl::OkStatus();
}

bool JobShard::NoteAudit(const Auditor::Finding& finding) {
  switch (finding.result) {
    case Auditor::Result::kMatch:
      ++state_.totals.audits_matched;
      return false;
    case Auditor::Result::kAbandoned:
      ++state_.totals.audits_abandoned;
      return false;
    case Auditor::Result::kMismatch:
      break;
  }
  ++state_.totals.audits_mismatched;
  return true;
}

void JobShard::RollCall(size_t limit, std::vector<OpenRoundInfo>* out) {
  summed_.RollCall(limit, out);
  if (relayed_ != nullptr) relayed_->RollCall(limit, out);
  latest_.RollCall(limit, out);
}

}  // namespace addend
