// The agent's record of its rounds: the times of every partition, for the trace and for histograms,
// and the duration of rounds beside the shortest duration possible. Belongs to the agent's core
// thread.
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
#include "services/worker_agent/node_tensor.h"

namespace addend {

// A partition's times in a round on this node, as TraceNow(), ascending as far as both are known;
// 0: not known (nothing was sent).
struct PartitionLife {
  PartitionId partition;
  Round round;
  ServerId server;  // the partition's owner
  uint32_t shard = 0;
  uint32_t bytes = 0;
  uint32_t last_rank = 0;  // local rank of the last push
  PushTimes pushes;
  PartitionTimes times;
  int64_t delivered = 0;  // the trainers were told
};

// The parts of a partition's time in a round, in order.
enum class Part : uint8_t { kIntraNode, kQueue, kPush, kSum, kPull };
inline constexpr std::array<const char*, 5> kPartNames = {"intra_node", "queue", "push", "sum",
                                                          "pull"};

// Rounds of the job on this node. A round lasts from the first tensor that all local ranks have
// pushed until no result is awaited: tensors that follow each other closely share a round. Only
// rounds of synchronous sums whose optimum is at least a millisecond count: below that, latency
// decides, not bandwidth.
struct RoundTimes {
  DurationHistogram seconds;
  double optimal_s = 0;                          // the shortest time possible for all of them
  double last_optimal_s = 0;                     // for the last round
  std::deque<std::pair<double, double>> recent;  // of the last 20: seconds, optimal seconds
};

class Journal {
 public:
  Journal();

  // The plan has changed: the shortest time possible for each byte of a round; 0: unknown.
  void SetOptimum(double s_per_byte) { optimal_s_per_byte_ = s_per_byte; }
  void BeginGeneration();
  // All local ranks have pushed the tensor, and its partitions are known.
  void RoundStarts(const NodeTensor& tensor);
  // All its results are there. Records the times of each partition, and resets them.
  void RoundEnds(NodeTensor* tensor, int64_t now);
  // The tensor's round will have no result.
  void RoundFails();

  const RoundTimes& times() const { return times_; }
  const DurationHistogram& part(Part part) const { return parts_[static_cast<size_t>(part)]; }
  uint64_t partitions() const { return partitions_; }
  uint64_t bytes_out() const { return bytes_out_; }
  uint64_t bytes_in() const { return bytes_in_; }
  // Of the last generation with rounds, and the names of its tensors.
  const TraceRing<PartitionLife>& lives() const { return lives_; }
  const std::map<TensorId, std::string>& names() const { return names_; }

 private:
  void Note(const NodeTensor& tensor, uint32_t partition, int64_t delivered);
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
  bool new_generation_ = false;  // without a round so far
  TraceRing<PartitionLife> lives_;
  std::map<TensorId, std::string> names_;
};

}  // namespace addend
