#include "services/worker_agent/pipeline.h"

#include "lib/trace/clock.h"

namespace addend {
namespace {

// Bytes summed in one turn of the loop: about 100 us.
constexpr size_t kReduceBytesPerTurn = 1 << 20;

}  // namespace

void ReduceStage::Enter(Pipeline* pipeline, Task task) {
  if (!task.tensor->must_reduce) return pipeline->Leave(std::move(task));
  queue_.push({std::move(task), next_sequence_++});
  if (scheduled_) return;
  scheduled_ = true;
  loop_->Defer([this, pipeline] { RunSome(pipeline); });
}

void ReduceStage::RunSome(Pipeline* pipeline) {
  for (size_t bytes = 0; bytes < kReduceBytesPerTurn && !queue_.empty();) {
    Task task = queue_.top().task;
    queue_.pop();
    task.tensor->ReduceInNodeOf(task.partition);
    bytes += task.tensor->BytesOf(task.partition);
    pipeline->Leave(std::move(task));
  }
  scheduled_ = !queue_.empty();
  if (scheduled_) loop_->Defer([this, pipeline] { RunSome(pipeline); });
}

void PushStage::Enter(Pipeline* pipeline, Task task) {
  task.tensor->way[task.partition].ready = TraceNow();
  ++entered_;
  Send(task);
  pushed_(task);
  pipeline->Leave(std::move(task));
}

FrameHeader PushStage::HeaderFor(const Tensor& tensor, uint32_t partition, FrameType type) const {
  FrameHeader header;
  header.type = type;
  header.dtype = tensor.shape.dtype;
  header.op = tensor.shape.op;
  header.job = identity_->job;
  header.generation = identity_->generation;
  header.sender = identity_->node.value();
  header.incarnation = identity_->incarnation;
  header.plan_version = tensor.owners[partition].version;
  header.partition = PartitionId(tensor.id, partition);
  return header;
}

void PushStage::Send(const Task& task) {
  Tensor& tensor = *task.tensor;
  const PartitionOwner& owner = tensor.owners[task.partition];
  if (owner.reported) return;
  const Bytes payload = tensor.Contribution(task.partition);
  if (!tensor.IsOnHost(task.partition)) {
    if (!read_devices_ || !owner.link->TakesFromDevice(payload.size())) return bring_(task);
    direct_bytes_ += payload.size();
  }
  ++sent_;
  FrameHeader header = HeaderFor(tensor, task.partition, FrameType::kContribution);
  header.flags = tensor.contribution_is_empty ? kFlagEmpty : 0;
  header.round = task.round;
  header.priority = task.priority;
  header.contributors = 1;
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  // The tensor keeps the memory that is lent.
  PartitionTimes* const way = &tensor.way[task.partition];
  owner.link->Push(
      header, payload, [keep = task.tensor, way](absl::Status) { way->last_out = TraceNow(); },
      task.place, &way->first_out);
}

void PushStage::SendReport(const Tensor& tensor, uint32_t partition, FrameType type) {
  FrameHeader header = HeaderFor(tensor, partition, type);
  header.round = tensor.rounds.Held(partition);
  header.priority = INT32_MAX;  // before any contribution
  if (type != FrameType::kRecover || !tensor.asynchronous()) {
    return tensor.owners[partition].link->Push(header, {}, nullptr);
  }
  const auto stamp = std::make_shared<const std::vector<std::byte>>(tensor.stamps[partition].held);
  tensor.owners[partition].link->Push(header, *stamp, [stamp](absl::Status) {});
}

void PushStage::SendResult(const std::shared_ptr<Tensor>& tensor, uint32_t partition, Round round) {
  const Bytes payload =
      tensor->ResultSlot(round).subspan(tensor->OffsetOf(partition), tensor->BytesOf(partition));
  FrameHeader header = HeaderFor(*tensor, partition, FrameType::kResult);
  header.round = round;
  header.priority = INT32_MAX;  // a node waits for it
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  tensor->owners[partition].link->Push(header, payload, [keep = tensor](absl::Status) {});
}

void PullStage::Enter(Pipeline* pipeline, Task task) {
  pipeline_ = pipeline;
  const PartitionId id(task.tensor->id, task.partition);
  waiting_[id] = std::move(task);
}

void PullStage::Arrived(PartitionId partition) {
  auto node = waiting_.extract(partition);
  if (node.empty()) return;
  node.mapped().tensor->owners[partition.index()].link->Arrived(partition);
  pipeline_->Leave(std::move(node.mapped()));
}

void PullStage::Forget(const Tensor& tensor) {
  for (uint32_t partition = 0; partition < tensor.partitions(); ++partition) {
    const PartitionId id(tensor.id, partition);
    if (waiting_.erase(id) > 0) tensor.owners[partition].link->Arrived(id);
  }
}

const Task* PullStage::Find(PartitionId partition) const {
  const auto it = waiting_.find(partition);
  return it == waiting_.end() ? nullptr : &it->second;
}

}  // namespace addend
