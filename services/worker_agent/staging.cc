#include "services/worker_agent/staging.h"

#include <utility>

namespace addend {
namespace {

// Enough to keep a PCIe link busy while the agent and a trainer talk (64 GB/s, 100 us: 6 MB),
// little for what is urgent to wait for.
constexpr uint64_t kUnderWayBytes = 16 << 20;

}  // namespace

void StagingOrder::Announce(const std::shared_ptr<Tensor>& tensor, uint32_t lead) {
  Lane& lane = lanes_[lead];
  lane.waiting.push({tensor, tensor->priority, next_sequence_++});
  StartSome(&lane, lead);
}

void StagingOrder::Done(const Tensor& tensor, uint32_t lead) {
  const auto found = lanes_.find(lead);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  const auto under_way = lane.under_way.find(tensor.number);
  if (under_way == lane.under_way.end()) return;
  lane.under_way_bytes -= under_way->second;
  lane.under_way.erase(under_way);
  StartSome(&lane, lead);
}

void StagingOrder::Forget(const Tensor& tensor) {
  for (auto& [lead, lane] : lanes_) Done(tensor, lead);
}

void StagingOrder::StartSome(Lane* lane, uint32_t lead) {
  while (!lane->waiting.empty() && lane->under_way_bytes < kUnderWayBytes) {
    const std::shared_ptr<Tensor> tensor = lane->waiting.top().tensor;
    lane->waiting.pop();
    if (!tensor->error.ok()) continue;
    lane->under_way[tensor->number] = tensor->bytes;
    lane->under_way_bytes += tensor->bytes;
    start_(tensor, lead);
  }
}

void StagingStage::Enter(Pipeline* pipeline, Task task) {
  pipeline_ = pipeline;
  const Tensor& tensor = *task.tensor;
  if (tensor.StagedBytes() >= tensor.OffsetOf(task.partition) + tensor.BytesOf(task.partition)) {
    return pipeline->Leave(std::move(task));
  }
  waiting_[tensor.number].push_back(std::move(task));
}

void StagingStage::Advance(const Tensor& tensor) {
  const auto found = waiting_.find(tensor.number);
  if (found == waiting_.end()) return;
  std::vector<Task> ready;
  std::deque<Task>& tasks = found->second;
  const uint64_t staged = tensor.StagedBytes();
  while (!tasks.empty() && staged >= tensor.OffsetOf(tasks.front().partition) +
                                         tensor.BytesOf(tasks.front().partition)) {
    ready.push_back(std::move(tasks.front()));
    tasks.pop_front();
  }
  if (tasks.empty()) waiting_.erase(found);
  for (Task& task : ready) pipeline_->Leave(std::move(task));
}

}  // namespace addend
