// The admitted trainers of a generation on this node, by local rank. Belongs to the agent's core
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/ids.h"
#include "services/worker_agent/trainer.h"

namespace addend {

class LocalRanks {
 public:
  // `hostname`: of this machine, for people.
  LocalRanks(NodeId node, uint32_t local_size, std::string hostname);

  // From now on the trainer is the rank. It must leave before it is destroyed.
  void Enter(uint32_t local_rank, Trainer* trainer);
  // False: the trainer is not a rank of this generation.
  bool Leave(const Trainer* trainer);
  // Closes all of them; none is a rank any more.
  void CloseAll(const absl::Status& why);

  uint32_t size() const { return static_cast<uint32_t>(trainers_.size()); }
  // Null: the rank is not connected.
  Trainer* at(uint32_t local_rank) const { return trainers_[local_rank]; }
  uint32_t connected() const;
  bool any() const { return connected() > 0; }
  // Every rank was admitted once.
  bool all_came() const;
  bool anyone_left() const { return anyone_left_; }

  // To the rank, or to all ranks, that are connected.
  template <typename Typed>
  void Tell(uint32_t local_rank, const Typed& message) const {
    if (trainers_[local_rank] != nullptr) trainers_[local_rank]->Send(message);
  }
  template <typename Typed>
  void TellAll(const Typed& message) const {
    for (uint32_t rank = 0; rank < size(); ++rank) Tell(rank, message);
  }

  NodeId node() const { return NodeId(node_); }
  // The rank in the job.
  uint32_t RankOf(uint32_t local_rank) const { return first_rank_ + local_rank; }
  // "4, 5": ranks in the job, for people.
  std::string RanksOf(const std::vector<uint32_t>& local_ranks) const;
  // "rank 5 (local rank 1 of node 2, pid 7 on host)".
  std::string Describe(const Trainer& trainer) const;
  const std::string& hostname() const { return hostname_; }

 private:
  const uint32_t node_;
  const uint32_t first_rank_;
  const std::string hostname_;
  std::vector<Trainer*> trainers_;  // by local rank
  std::vector<bool> came_;          // by local rank
  bool anyone_left_ = false;
};

}  // namespace addend
