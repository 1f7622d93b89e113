// The claims of every run: the bits of every result, and that nothing fails without a cause.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/client/error.h"
#include "proto/addend/v1/scheduler.pb.h"
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
  bool asynchronous() const { return op == ReduceOp::kAccumulate; }
  uint32_t root = 0;                     // the rank whose contribution is broadcast
  std::set<uint32_t> participants = {};  // empty: all ranks
  WireFormat wire = {};
  bool TakesPart(uint32_t rank) const {
    return participants.empty() || participants.contains(rank);
  }
  // The rank contributes values, and not only its presence.
  bool Contributes(uint32_t rank) const { return op != ReduceOp::kBroadcast || rank == root; }
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
  bool encrypts = false;
  uint32_t rack_nodes = 0;   // consecutive nodes in a rack, which relay for each other; 0: no racks
  bool zero_blocks = false;  // a part of each contribution is zeros, in whole blocks
  uint64_t redeclared_every = 0;  // so many steps a tensor is given up and declared anew; 0: never
  // This rank declares a tensor of the name "odd" with another shape than the others do.
  std::optional<uint32_t> odd_rank;
  std::vector<TensorSetting> tensors;
  uint32_t ranks() const { return nodes * local_size; }
  // Before these steps a tensor is declared anew, the tensors in turn.
  bool DeclaresAnewBefore(uint64_t step, size_t tensor) const {
    return redeclared_every != 0 && step != 0 && step % redeclared_every == 0 &&
           step / redeclared_every % tensors.size() == tensor;
  }
  // The number that the step's round has in the tensor's present declaration.
  uint64_t RoundOf(size_t tensor, uint64_t step) const;
};

class Oracle {
 public:
  // `short_of_memory`: servers may refuse the memory that they have promised, and jobs may fail.
  Oracle(World* world, bool short_of_memory) : world_(world), short_of_memory_(short_of_memory) {}

  // The contribution of a rank: a function of all of its arguments. An asynchronous update adds 1
  // to the elements of the rank's node, those with its number modulo the number of nodes.
  std::vector<std::byte> Contribution(const JobPlan& job, const GenerationId& generation,
                                      size_t tensor, uint64_t round, uint32_t rank) const;
  // A rank has joined its job, and begins with round 1 of every tensor.
  void OnJoin(const JobPlan& job, uint32_t rank);
  // A rank has begun a round.
  void OnPush(const JobPlan& job, const GenerationId& generation, size_t tensor, uint64_t round,
              uint32_t rank);
  // A rank has the result of a round.
  void OnResult(const JobPlan& job, const GenerationId& generation, size_t tensor, uint64_t round,
                uint32_t rank, Bytes result);
  // A rank has left its generation, which has not failed for it.
  void OnLeave(const JobPlan& job, uint32_t rank);
  // A rank's job has failed.
  void OnFailure(const JobPlan& job, uint32_t rank, const client::Error& error);
  // The tensor "odd" has ended so.
  void OnOdd(const JobPlan& job, uint32_t rank, const client::Error& refusal);
  // Of a tensor in which a rank takes no part.
  static constexpr uint64_t kNoRounds = std::numeric_limits<uint64_t>::max();
  // A rank's generation has failed, after so many rounds of each tensor. The owners have decided on
  // the rounds that its node had started.
  void OnEnd(const JobPlan& job, const GenerationId& generation, uint32_t rank,
             const std::vector<uint64_t>& rounds);
  // A node has been told of a plan. An owner's version is given once; but nodes of several racks
  // have relays in the place of the first owner.
  void OnPlan(const JobPlan& plan, uint32_t node, uint64_t job, uint32_t generation,
              const v1::TensorPlan& tensor);
  // Something has happened from which all jobs may fail, now or a while later.
  void ExcuseAll(const std::string& why) { excused_all_ = why; }
  // Ranks of the job leave while others go on: from then on it may fail. Their node fails it; a
  // planned change does not wait for a node without ranks, so that an owner may find the rounds out
  // of order; and a node that is lost may have results that others cannot get any more.
  void ExcuseJob(const JobPlan& job) {
    may_fail_.insert(&job);
    any_left_ = true;
  }
  // A node of the job has sent frames that servers refuse: from then on it may fail.
  void ExcuseAttacked(const JobPlan& job) { may_fail_.insert(&job); }
  bool any_left() const { return any_left_; }
  // Something has happened from which the node may be lost, now or a while later. If the job goes
  // on without it, then results without the node are right; else the job may fail.
  void MayLose(const JobPlan& job, uint32_t node) { lost_[&job].insert(node); }
  // Whether the results could still be checked if that node were lost too.
  bool CanLose(const JobPlan& job, uint32_t node) const;
  uint64_t results() const { return results_; }

 private:
  using Key = std::tuple<const JobPlan*, GenerationId, size_t, uint64_t>;
  struct Seen {
    std::vector<std::byte> bits;  // of the first of the ranks
    uint32_t first = 0;
    std::set<uint32_t> ranks;
  };
  bool MayBeLost(const JobPlan& job, uint32_t rank) const;
  bool MayFail(const JobPlan& job, uint32_t rank, const client::Error& error) const;
  void Compare(const JobPlan& job, uint32_t rank, Bytes result, const std::string& whose,
               Seen* seen);
  void CheckSum(const JobPlan& job, const GenerationId& generation, size_t tensor, uint64_t round,
                Bytes result, const std::string& whose);
  void CheckLatest(const JobPlan& job, const GenerationId& generation, size_t tensor,
                   uint64_t round, uint32_t rank, Bytes result, const std::string& whose);
  std::vector<std::byte> Reference(const JobPlan& job, const GenerationId& generation,
                                   size_t tensor, uint64_t round,
                                   const std::set<uint32_t>& without) const;  // empty: no rank

  World* const world_;
  const bool short_of_memory_;
  std::map<Key, Seen> seen_;
  // A node that was taken for lost, while others went on without it, may get a last result of its
  // own server. Its job has to fail then.
  struct Alone {
    std::string difference;
    std::optional<uint32_t> or_this;  // of these two ranks
  };
  std::map<std::pair<const JobPlan*, uint32_t>, Alone> alone_;  // by rank
  std::set<std::pair<const JobPlan*, uint32_t>> ended_well_;    // ranks
  // Of asynchronous tensors: by job and node, the rounds that were begun, and by rank, its last
  // value.
  std::map<std::tuple<const JobPlan*, GenerationId, size_t, uint32_t>, uint64_t> begun_;
  std::map<std::tuple<const JobPlan*, uint32_t, size_t>, std::vector<double>> latest_;
  // By job and generation that has failed: of each tensor a rank, and its rounds.
  std::map<std::pair<const JobPlan*, GenerationId>,
           std::vector<std::optional<std::pair<uint32_t, uint64_t>>>>
      ended_;
  // By job, generation, tensor, partition and version: server and shard.
  // The last is 1 + the node, where that matters.
  using Version = std::tuple<uint64_t, uint32_t, uint32_t, int, uint64_t, uint32_t>;
  std::map<Version, std::pair<uint32_t, uint32_t>> owners_;
  std::map<const JobPlan*, std::set<uint32_t>> lost_;
  std::set<const JobPlan*> may_fail_;  // never walked through
  bool any_left_ = false;
  std::string excused_all_;
  uint64_t results_ = 0;
};

}  // namespace addend::simulation
