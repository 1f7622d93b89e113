// Adds up the times of partitions and rounds.
#include "services/worker_agent/journal.h"

#include <algorithm>
#include <utility>

#include "lib/link/server_link.h"

namespace addend {
namespace {

// A minute of 1,000 partitions a second; 7 MB when the ring is full.
constexpr size_t kLivesKept = 1 << 16;
constexpr size_t kRecentRounds = 20;
constexpr double kLeastOptimum = 1e-3;

// A time that follows `before`, as far as it is known. With payloads passed by reference the sender
// learns that a payload was sent only when the receiver releases it, perhaps after the result.
int64_t Following(int64_t before, int64_t time, int64_t next) {
  if (time == 0) return before;
  return std::clamp(time, before, std::max(before, next));
}

PartitionTimes InOrder(const PartitionTimes& times, int64_t now) {
  PartitionTimes ordered;
  ordered.last_in = times.last_in == 0 ? now : times.last_in;
  ordered.first_in = times.first_in == 0 ? ordered.last_in : times.first_in;
  ordered.ready = std::min(times.ready, ordered.first_in);
  ordered.first_out = Following(ordered.ready, times.first_out, ordered.first_in);
  ordered.last_out = Following(ordered.first_out, times.last_out, ordered.first_in);
  return ordered;
}

}  // namespace

Journal::Journal() : lives_(kLivesKept) {}

void Journal::BeginGeneration() {
  open_ = 0;
  new_generation_ = true;
}

void Journal::RoundStarts(const NodeTensor& tensor) {
  if (std::exchange(new_generation_, false)) {
    lives_.Clear();
    names_.clear();
  }
  names_.try_emplace(tensor.id, tensor.shape.name);
  if (open_++ == 0) {
    began_ = tensor.pushes.last_push;
    bytes_ = 0;
    counts_ = true;
  }
  bytes_ += tensor.bytes;
  counts_ = counts_ && !tensor.asynchronous() && tensor.shape.op != ReduceOp::kBroadcast &&
            tensor.shape.participants.all();
}

void Journal::RoundEnds(NodeTensor* tensor, int64_t now) {
  for (uint32_t partition = 0; partition < tensor->partitions(); ++partition) {
    Note(*tensor, partition, now);
    tensor->times[partition] = {};
  }
  tensor->pushes = {};
  if (open_ > 0 && --open_ == 0) EndRound(now);
}

void Journal::RoundFails() {
  counts_ = false;
  if (open_ > 0) --open_;
}

void Journal::Note(const NodeTensor& tensor, uint32_t partition, int64_t delivered) {
  const ServerLink& link = *tensor.owners[partition].link;
  const PartitionLife life{.partition = PartitionId(tensor.id, partition),
                           .round = tensor.rounds.round(),
                           .server = link.server(),
                           .shard = link.shard(),
                           .bytes = static_cast<uint32_t>(tensor.BytesOf(partition)),
                           .last_rank = tensor.pushes.last_rank,
                           .pushes = tensor.pushes,
                           .times = InOrder(tensor.times[partition], delivered),
                           .delivered = delivered};
  lives_.Add(life);
  ++partitions_;
  bytes_in_ += life.bytes;
  if (!tensor.contribution_is_empty) bytes_out_ += life.bytes;
  const auto observe = [this](Part part, int64_t ns) {
    parts_[static_cast<size_t>(part)].Observe(ns);
  };
  observe(Part::kIntraNode, life.times.ready - life.pushes.first_call);
  observe(Part::kQueue, life.times.first_out - life.times.ready);
  observe(Part::kPush, life.times.last_out - life.times.first_out);
  observe(Part::kSum, life.times.first_in - life.times.last_out);
  observe(Part::kPull, life.times.last_in - life.times.first_in);
}

void Journal::EndRound(int64_t now) {
  const double optimal_s = static_cast<double>(bytes_) * optimal_s_per_byte_;
  if (!counts_ || optimal_s < kLeastOptimum) return;
  const int64_t took = now - began_;
  times_.seconds.Observe(took);
  times_.optimal_s += optimal_s;
  times_.last_optimal_s = optimal_s;
  times_.recent.push_back({static_cast<double>(took) * 1e-9, optimal_s});
  if (times_.recent.size() > kRecentRounds) times_.recent.pop_front();
}

}  // namespace addend
