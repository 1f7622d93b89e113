// What the agent does so that results can be trusted: a few partitions are summed a second time by
// another server, and values that are not finite are traced to the rank that pushed them.
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/reduce/finite.h"
#include "lib/wire/audit.h"
#include "lib/wire/crc32c.h"
#include "services/worker_agent/agent.h"

namespace addend {

ServerLink* Agent::AuditorOf(const Tensor& tensor, uint32_t partition, Round round) {
  const PartitionId id(tensor.id, partition);
  if (!IsAudited(id, round, options_.audit_one_in)) return nullptr;
  if (tensor.asynchronous() || tensor.shape.op == ReduceOp::kBroadcast) return nullptr;
  if (nodes_ < options_.num_nodes || nodes_ < 2 || !failing_.ok()) return nullptr;
  std::vector<ServerId> servers;
  for (const auto& [server, info] : servers_) servers.push_back(ServerId(server));
  const ServerId owner = tensor.owners[partition].link->server();
  const auto auditor = addend::AuditorOf(id, round, owner, std::move(servers));
  if (!auditor) return nullptr;
  const auto link = LinkTo(auditor->value(), 0);
  return link.ok() ? *link : nullptr;
}

// A copy, behind everything else: the round does not wait for it.
void Agent::SendAudit(const Task& task) {
  ServerLink* const link = AuditorOf(*task.tensor, task.partition, task.round);
  if (link == nullptr) return;
  if (!task.tensor->IsOnHost(task.partition)) {
    return host_copies_.Bring(task.tensor, task.partition, [this, task](bool there) {
      if (there) SendAudit(task);
    });
  }
  const Bytes payload = task.tensor->Contribution(task.partition);
  const auto copy = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
  FrameHeader header = push_->HeaderFor(*task.tensor, task.partition, FrameType::kAudit);
  header.flags = task.tensor->contribution_is_empty ? kFlagEmpty : 0;
  header.round = task.round;
  header.priority = INT32_MIN;
  header.uncompressed_bytes = static_cast<uint32_t>(copy->size());
  link->Push(header, *copy, [copy](absl::Status) {});
}

void Agent::SendDigest(const Tensor& tensor, uint32_t partition, Round round) {
  ServerLink* const link = AuditorOf(tensor, partition, round);
  if (link == nullptr) return;
  const Bytes result =
      tensor.ResultSlot(round).subspan(tensor.OffsetOf(partition), tensor.BytesOf(partition));
  FrameHeader header = push_->HeaderFor(tensor, partition, FrameType::kAuditDigest);
  header.round = round;
  header.priority = INT32_MIN;
  header.detail = Crc32c(result);
  header.contributors = tensor.owners[partition].link->server().value();
  link->Push(header, {}, nullptr);
}

// Contributions stay as they were until the result is delivered.
void Agent::NoteNonFinite(const Tensor& tensor, uint32_t partition) {
  ++nonfinite_results_;
  const size_t offset = tensor.OffsetOf(partition);
  const size_t size = SizeOf(tensor.shape.dtype);
  for (const uint32_t segment : tensor.SegmentsWithData()) {
    const auto found =
        FirstNonFinite(tensor.shape.dtype, tensor.contributions[segment]->memory().data() + offset,
                       tensor.BytesOf(partition) / size);
    if (!found) continue;
    // What GPUs have summed among themselves cannot be told apart any more.
    const std::vector<uint32_t> ranks =
        tensor.device[segment].used ? devices_.MembersOf(segment) : std::vector<uint32_t>{segment};
    for (const uint32_t rank : ranks) ++nonfinite_[rank];
    if (std::exchange(nonfinite_told_, true)) continue;
    const std::string text = absl::StrFormat(
        "%s pushed a value that is not finite: element %d of tensor '%s' in round %d",
        ranks.size() == 1 ? "rank " + RanksOf(ranks) : "one of ranks " + RanksOf(ranks),
        offset / size + *found, tensor.shape.name, tensor.rounds.round().value());
    spdlog::warn("{}; further ones are counted", text);
    NoteIncident("nonfinite", text);
  }
}

}  // namespace addend
