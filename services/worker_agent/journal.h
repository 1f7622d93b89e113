// What the agent notes of its rounds: the way of every partition, for the trace and for histograms,
// and how long rounds take beside the shortest time possible. Belongs to the agent's core thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/ids.h"
#include "lib/trace/duration_histogram.h"
#include "lib/trace/ring.h"
#include "services/worker_agent/tensor.h"

namespace addend {

// A partition's way through one round on this node. Times as TraceNow(), ascending as far as both
// are known; 0: not known (nothing was sent).
struct PartitionLife {
  PartitionId partition;
  Round round;
  ServerId server;  // that summed it
  uint32_t shard = 0;
  uint32_t bytes = 0;
  uint32_t last_rank = 0;  // local rank that pushed last
  PushTimes pushes;
  PartitionTimes way;
  int64_t delivered = 0;  // the trainers have been told
};

// Parts of a partition's way, in order.
enum class Part : uint8_t { kIntraNode, kQueue, kPush, kSum, kPull };
inline constexpr std::array<const char*, 5> kPartNames = {"intra_node", "queue", "push", "sum",
                                                          "pull"};

// Rounds of the job on this node. One lasts from the first tensor that all local ranks have pushed
// until no result is awaited: where tensors follow each other closely they share one. Counted are
// those of synchronous sums whose optimum is at least a millisecond: below that latency counts, not
// bandwidth.
struct RoundTimes {
  DurationHistogram seconds;
  double optimal_s = 0;                          // the shortest time possible for all of them
  double last_optimal_s = 0;                     // for the last one
  std::deque<std::pair<double, double>> recent;  // of the last 20: seconds, optimal seconds
};

class Journal {
 public:
  Journal();

  // The plan has changed: the shortest time possible for each byte of a round; 0: unknown.
  void SetOptimum(double s_per_byte) { optimal_s_per_byte_ = s_per_byte; }
  void BeginGeneration();
  // All local ranks have pushed the tensor, and its partitions are known.
  void RoundStarts(const Tensor& tensor);
  // All its results are there. Notes the way of each partition, and forgets it.
  void RoundEnds(Tensor* tensor);
  // It will have no result.
  void RoundFails(const Tensor& tensor);

  const RoundTimes& times() const { return times_; }
  const DurationHistogram& part(Part part) const { return parts_[static_cast<size_t>(part)]; }
  uint64_t partitions() const { return partitions_; }
  uint64_t bytes_out() const { return bytes_out_; }
  uint64_t bytes_in() const { return bytes_in_; }
  // Of the last generation that had any, and the names of its tensors.
  const TraceRing<PartitionLife>& lives() const { return lives_; }
  const std::map<TensorId, std::string>& names() const { return names_; }

 private:
  void Note(const Tensor& tensor, uint32_t partition, int64_t delivered);
  void EndRound(int64_t now);

  double optimal_s_per_byte_ = 0;
  // The round that is under way.
  int64_t began_ = 0;
  uint32_t open_ = 0;  // tensors
  uint64_t bytes_ = 0;
  bool counts_ = true;

  RoundTimes times_;
  std::array<DurationHistogram, kPartNames.size()> parts_;
  uint64_t partitions_ = 0;
  uint64_t bytes_out_ = 0;
  uint64_t bytes_in_ = 0;
  bool new_generation_ = false;  // and nothing of it has been noted
  TraceRing<PartitionLife> lives_;
  std::map<TensorId, std::string> names_;
};

}  // namespace addend
