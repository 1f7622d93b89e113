#include "services/worker_agent/pipeline.h"

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
  Send(task);
  pipeline->Leave(std::move(task));
}

void PushStage::Send(const Task& task) {
  const Tensor& tensor = *task.tensor;
  const Bytes payload = tensor.Contribution(task.partition);
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.flags = tensor.contribution_is_empty ? kFlagEmpty : 0;
  header.dtype = tensor.shape.dtype;
  header.op = tensor.shape.op;
  header.job = identity_->job;
  header.generation = identity_->generation;
  header.sender = identity_->node.value();
  header.incarnation = identity_->incarnation;
  header.plan_version = tensor.plan_version;
  header.partition = PartitionId(tensor.id, task.partition);
  header.round = task.round;
  header.priority = task.priority;
  header.contributors = 1;
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  // The tensor keeps the memory that is lent.
  tensor.owners[task.partition]->Push(header, payload, [keep = task.tensor](absl::Status) {});
}

void PullStage::Enter(Pipeline* pipeline, Task task) {
  pipeline_ = pipeline;
  const PartitionId id(task.tensor->id, task.partition);
  waiting_[id] = std::move(task);
}

void PullStage::Arrived(PartitionId partition) {
  auto node = waiting_.extract(partition);
  if (!node.empty()) pipeline_->Leave(std::move(node.mapped()));
}

}  // namespace addend
