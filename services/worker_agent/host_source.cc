// The queue of sums in the node.
#include "services/worker_agent/host_source.h"

#include <utility>

namespace addend {
namespace {

// Bytes summed in a turn of the loop: about 100 us.
constexpr size_t kSumBytesPerTurn = 1 << 20;

}  // namespace

void HostSource::Begin(PartitionPush push) {
  if (!push.tensor->must_reduce) return listener_->OnReady(std::move(push));
  queue_.push({std::move(push), next_sequence_++});
  if (scheduled_) return;
  scheduled_ = true;
  loop_->Defer([this] { SumSome(); });
}

void HostSource::SumSome() {
  for (size_t bytes = 0; bytes < kSumBytesPerTurn && !queue_.empty();) {
    PartitionPush push = queue_.top().push;
    queue_.pop();
    push.tensor->ReduceInNodeOf(push.partition);
    bytes += push.tensor->BytesOf(push.partition);
    listener_->OnReady(std::move(push));
  }
  scheduled_ = !queue_.empty();
  if (scheduled_) loop_->Defer([this] { SumSome(); });
}

}  // namespace addend
