// The trainers' places, and how messages name them.
#include "services/worker_agent/local_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace addend {

LocalRanks::LocalRanks(NodeId node, uint32_t local_size, std::string hostname)
    : node_(node.value()),
      first_rank_(node.value() * local_size),
      hostname_(std::move(hostname)),
      trainers_(local_size, nullptr),
      came_(local_size, false) {}

void LocalRanks::Enter(uint32_t local_rank, Trainer* trainer) {
  trainer->local_rank = static_cast<int32_t>(local_rank);
  trainers_[local_rank] = trainer;
  came_[local_rank] = true;
}

bool LocalRanks::Leave(const Trainer* trainer) {
  if (trainer->local_rank < 0 || trainers_[trainer->local_rank] != trainer) return false;
  trainers_[trainer->local_rank] = nullptr;
  anyone_left_ = true;
  return true;
}

void LocalRanks::CloseAll(const absl::Status& why) {
  for (Trainer*& trainer : trainers_) {
    if (trainer != nullptr) std::exchange(trainer, nullptr)->Close(why);
  }
}

uint32_t LocalRanks::connected() const {
  return static_cast<uint32_t>(
      std::count_if(trainers_.begin(), trainers_.end(),
                    [](const Trainer* trainer) { return trainer != nullptr; }));
}

bool LocalRanks::all_came() const {
  return std::find(came_.begin(), came_.end(), false) == came_.end();
}

std::string LocalRanks::RanksOf(const std::vector<uint32_t>& local_ranks) const {
  return absl::StrJoin(local_ranks, ", ", [this](std::string* out, uint32_t local_rank) {
    absl::StrAppend(out, RankOf(local_rank));
  });
}

std::string LocalRanks::Describe(const Trainer& trainer) const {
  return absl::StrFormat("rank %d (local rank %d of node %d, pid %d on %s)",
                         RankOf(static_cast<uint32_t>(trainer.local_rank)), trainer.local_rank,
                         node_, trainer.pid(), hostname_);
}

}  // namespace addend
