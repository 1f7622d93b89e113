// Copies and checksums for auditors, and the search for values that are not finite.
#include "services/worker_agent/integrity.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/member/protocols.h"
#include "lib/reduce/finite.h"
#include "lib/wire/audit.h"
#include "lib/wire/crc32c.h"
#include "services/worker_agent/node_frames.h"

namespace addend {

ServerLink* Integrity::AuditorOf(const NodeTensor& tensor, uint32_t partition, Round round) {
  const PartitionId id(tensor.id, partition);
  if (!IsAudited(id, round, context_.options->audit_one_in)) return nullptr;
  if (tensor.asynchronous() || tensor.shape.op == ReduceOp::kBroadcast) return nullptr;
  // An auditor has neither the tensor's name nor the elements' positions, on which the bits depend.
  if (tensor.shape.wire.stochastic) return nullptr;
  const uint32_t nodes = context_.options->num_nodes;
  const uint32_t local_size = context_.options->local_size;
  if (nodes_->taking_part < nodes || !state_->running()) return nullptr;
  if (tensor.shape.participants.CountNodes(nodes, local_size) < 2) return nullptr;
  std::vector<ServerId> servers;
  for (const auto& [server, info] : context_.directory->servers) {
    // Older servers do not round.
    const bool rounds = FramesOf(info.protocols()).newest >= kEncodingsSince;
    if (rounds || !tensor.shape.wire.lossy()) servers.push_back(ServerId(server));
  }
  const ServerId owner = tensor.owners[partition].link->server();
  const auto auditor = addend::AuditorOf(id, round, owner, std::move(servers));
  if (!auditor) return nullptr;
  const auto link = servers_->LinkTo(auditor->value(), 0);
  return link.ok() ? *link : nullptr;
}

void Integrity::OnPushed(const PartitionPush& push, ContributionSource* source) {
  ServerLink* const link = AuditorOf(*push.tensor, push.partition, push.round);
  if (link == nullptr) return;
  if (!push.tensor->IsOnHost(push.partition)) {
    return source->Bring(push.tensor, push.partition, [this, push, source](bool there) {
      if (there) OnPushed(push, source);
    });
  }
  const Bytes payload = push.tensor->Contribution(push.partition);
  const auto copy = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
  FrameHeader header =
      HeaderFor(*context_.identity, *push.tensor, push.partition, FrameType::kAudit);
  header.flags = push.tensor->contribution_is_empty ? kFlagEmpty : 0;
  header.flags |= WireFlagOf(push.tensor->shape.wire.dtype);
  const Participants& participants = push.tensor->shape.participants;
  if (!participants.all()) {
    const NodeOptions& job = *context_.options;
    header.contributors = participants.CountNodes(job.num_nodes, job.local_size);
    header.detail = participants.CountIn(0, job.job_size());
  }
  header.round = push.round;
  header.priority = INT32_MIN;
  header.uncompressed_bytes = static_cast<uint32_t>(copy->size());
  link->Push(
      header, *copy, [copy](absl::Status) {}, /*place=*/0, /*handed_at=*/nullptr,
      EncodeOnce(context_.encoder, push.tensor->shape.dtype, *copy));
}

void Integrity::OnResult(const NodeTensor& tensor, uint32_t partition, Round round) {
  ServerLink* const link = AuditorOf(tensor, partition, round);
  if (link == nullptr) return;
  FrameHeader header = HeaderFor(*context_.identity, tensor, partition, FrameType::kAuditDigest);
  header.round = round;
  header.priority = INT32_MIN;
  header.detail = Crc32c(tensor.ResultOf(partition, round));
  header.contributors = tensor.owners[partition].link->server().value();
  link->Push(header, {}, nullptr);
}

void Integrity::OnNonFinite(const NodeTensor& tensor, uint32_t partition,
                            const ContributionSource& source) {
  ++context_.counters->nonfinite_results;
  const size_t offset = tensor.OffsetOf(partition);
  const size_t size = SizeOf(tensor.shape.dtype);
  bool own = false;
  for (const uint32_t segment : tensor.SegmentsWithData()) {
    const auto found =
        FirstNonFinite(tensor.shape.dtype, tensor.contributions[segment]->memory().data() + offset,
                       tensor.BytesOf(partition) / size);
    if (!found) continue;
    own = true;
    const std::vector<uint32_t> ranks = source.RanksIn(tensor, segment);
    for (const uint32_t rank : ranks) ++context_.counters->nonfinite[rank];
    if (std::exchange(nonfinite_told_, true)) continue;
    const std::string names = ranks_->RanksOf(ranks);
    const std::string text = absl::StrFormat(
        "%s pushed a value that is not finite: element %d of tensor '%s' in round %d",
        ranks.size() == 1 ? "rank " + names : "one of ranks " + names, offset / size + *found,
        tensor.shape.name, tensor.rounds.round().value());
    spdlog::warn("{}; further ones are counted", text);
    context_.incidents->Note(
        {"nonfinite", text, context_.loop->TraceTime(), /*follows=*/nonfinite_of_others_});
  }
  if (!own) nonfinite_of_others_ = true;
}

}  // namespace addend
