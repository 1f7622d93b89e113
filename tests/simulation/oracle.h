// The claims of every run: the bits of every result, and that nothing fails without a cause.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/types.h"
#include "lib/client/error.h"
#include "tests/simulation/world.h"

namespace addend::simulation {

// A job's number and its generation.
using GenerationId = std::pair<uint64_t, uint32_t>;

struct TensorSetting {
  std::string name;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t elements = 0;
  uint64_t bytes() const { return elements * SizeOf(dtype); }
};

// A job of the simulation. Constant.
struct JobPlan {
  std::string name;
  uint32_t nodes = 1;
  uint32_t local_size = 1;
  uint64_t partition_bytes = 0;
  bool shrink = false;
  uint32_t pipelined = 1;  // steps that a rank has open
  absl::Duration think;    // of a rank between two steps, at most
  uint32_t audit_one_in = 0;
  std::vector<TensorSetting> tensors;
  uint32_t ranks() const { return nodes * local_size; }
};

class Oracle {
 public:
  explicit Oracle(World* world) : world_(world) {}

  // The contribution of a rank: a function of all of its arguments.
  std::vector<std::byte> Contribution(const JobPlan& job, const GenerationId& generation,
                                      size_t tensor, uint64_t round, uint32_t rank) const;
  // A rank has the result of a round.
  void OnResult(const JobPlan& job, const GenerationId& generation, size_t tensor, uint64_t round,
                uint32_t rank, Bytes result);
  // A rank's job has failed.
  void OnFailure(const JobPlan& job, uint32_t rank, const client::Error& error);
  // Something has happened from which the job's generation may fail, now or a while later.
  void Excuse(const JobPlan& job, const std::string& why);
  void ExcuseAll(const std::string& why) { excused_all_ = why; }
  // A node of the generation may be lost: results without it are right.
  void MayLose(const JobPlan& job, uint32_t node) { lost_[&job].insert(node); }
  uint64_t results() const { return results_; }

 private:
  using Key = std::tuple<const JobPlan*, GenerationId, size_t, uint64_t>;
  struct Seen {
    std::vector<std::byte> bits;
    std::set<uint32_t> ranks;
  };
  std::vector<std::byte> Reference(const JobPlan& job, const GenerationId& generation,
                                   size_t tensor, uint64_t round,
                                   const std::set<uint32_t>& without) const;

  World* const world_;
  std::map<Key, Seen> seen_;
  std::map<const JobPlan*, std::string> excuses_;
  std::map<const JobPlan*, std::set<uint32_t>> lost_;
  std::string excused_all_;
  uint64_t results_ = 0;
};

}  // namespace addend::simulation
