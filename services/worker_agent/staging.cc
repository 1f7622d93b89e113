// Lanes of groups, and waiting partitions.
#include "services/worker_agent/staging.h"

#include <utility>

namespace addend {
namespace {

// Enough to keep a PCIe link busy while the agent and a trainer talk (64 GB/s, 100 us: 6 MB), and
// little for urgent tensors to wait for.
constexpr uint64_t kUnderWayBytes = 16 << 20;

bool IsStaged(const NodeTensor& tensor, uint32_t partition) {
  return tensor.StagedBytes() >= tensor.OffsetOf(partition) + tensor.BytesOf(partition);
}

}  // namespace

void StagingOrder::Announce(const std::shared_ptr<NodeTensor>& tensor, uint32_t lead) {
  Lane& lane = lanes_[lead];
  lane.waiting.push({tensor, tensor->priority, next_sequence_++});
  StartSome(&lane, lead);
}

void StagingOrder::Done(const NodeTensor& tensor, uint32_t lead) {
  const auto found = lanes_.find(lead);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  const auto under_way = lane.under_way.find(tensor.number);
  if (under_way == lane.under_way.end()) return;
  lane.under_way_bytes -= under_way->second;
  lane.under_way.erase(under_way);
  StartSome(&lane, lead);
}

void StagingOrder::Forget(const NodeTensor& tensor) {
  for (auto& [lead, lane] : lanes_) Done(tensor, lead);
}

void StagingOrder::StartSome(Lane* lane, uint32_t lead) {
  while (!lane->waiting.empty() && lane->under_way_bytes < kUnderWayBytes) {
    const std::shared_ptr<NodeTensor> tensor = lane->waiting.top().tensor;
    lane->waiting.pop();
    if (!tensor->error.ok()) continue;
    lane->under_way[tensor->number] = tensor->bytes;
    lane->under_way_bytes += tensor->bytes;
    start_(tensor, lead);
  }
}

bool StagingQueue::Hold(const PartitionPush& push) {
  if (IsStaged(*push.tensor, push.partition)) return false;
  waiting_[push.tensor->number].push_back(push);
  return true;
}

std::vector<PartitionPush> StagingQueue::Advance(const NodeTensor& tensor) {
  std::vector<PartitionPush> ready;
  const auto found = waiting_.find(tensor.number);
  if (found == waiting_.end()) return ready;
  std::deque<PartitionPush>& waiting = found->second;
  while (!waiting.empty() && IsStaged(tensor, waiting.front().partition)) {
    ready.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
  if (waiting.empty()) waiting_.erase(found);
  return ready;
}

}  // namespace addend
