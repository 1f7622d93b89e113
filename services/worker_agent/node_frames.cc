// Headers, reports and repeated results, and the check of a frame's sender.
#include "services/worker_agent/node_frames.h"

#include <vector>

namespace addend {

FrameHeader HeaderFor(const NodeIdentity& self, const NodeTensor& tensor, uint32_t partition,
                      FrameType type) {
  FrameHeader header;
  header.type = type;
  header.dtype = tensor.shape.dtype;
  header.op = tensor.shape.op;
  header.job = self.job;
  header.generation = self.generation;
  header.sender = self.node.value();
  header.incarnation = self.incarnation;
  header.plan_version = tensor.owners[partition].version;
  header.partition = PartitionId(tensor.id, partition);
  return header;
}

void SendReport(const NodeIdentity& self, const NodeTensor& tensor, uint32_t partition,
                FrameType type) {
  FrameHeader header = HeaderFor(self, tensor, partition, type);
  header.round = tensor.rounds.Held(partition);
  header.priority = INT32_MAX;  // before any contribution
  if (type != FrameType::kRecover || !tensor.asynchronous()) {
    return tensor.owners[partition].link->Push(header, {}, nullptr);
  }
  const auto stamp = std::make_shared<const std::vector<std::byte>>(tensor.stamps[partition].held);
  tensor.owners[partition].link->Push(header, *stamp, [stamp](absl::Status) {});
}

void SendHeldResult(const NodeIdentity& self, const std::shared_ptr<NodeTensor>& tensor,
                    uint32_t partition, Round round, PayloadEncoder* encoder) {
  const Bytes payload = tensor->ResultOf(partition, round);
  FrameHeader header = HeaderFor(self, *tensor, partition, FrameType::kResult);
  header.round = round;
  header.priority = INT32_MAX;  // a node waits for it
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  tensor->owners[partition].link->Push(
      header, payload, [keep = tensor](absl::Status) {}, /*place=*/0, /*handed_at=*/nullptr,
      EncodeOnce(encoder, tensor->shape.dtype, payload));
}

std::shared_ptr<NodeTensor> FindOwned(const NodeIdentity& self, const TensorTable& tensors,
                                      const ServerLink* sender, const FrameHeader& header) {
  if (header.generation != self.generation || header.job != self.job) return nullptr;
  std::shared_ptr<NodeTensor> tensor = tensors.ById(header.partition.tensor());
  const uint32_t partition = header.partition.index();
  if (tensor == nullptr || partition >= tensor->partitions()) return nullptr;
  const PartitionOwner& owner = tensor->owners[partition];
  return owner.link == sender && owner.version <= header.plan_version ? tensor : nullptr;
}

}  // namespace addend
