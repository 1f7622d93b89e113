// Ranks that have left a generation, and the rounds that other nodes wait for.
#include "services/scheduler/departures.h"

#include <algorithm>

#include "lib/base/limits.h"

namespace addend {
namespace {

constexpr int kMostAwaitedOfBeat = 16;
constexpr size_t kMostAwaitedOfJob = 256;

// All nodes have declared the tensor: a node that still waits for it names its number.
bool IsPlanned(const Agreements& tensors, const std::string& name) {
  const DeclaredTensor* const front = tensors.Front(name);
  return front != nullptr && front->stage == v1::AgreementRecord::PLANNED;
}

}  // namespace

bool JobDepartures::Take(NodeId node, const v1::HeartbeatRequest& beat) {
  const bool left = beat.departed_ranks() > 0 && nodes_.insert(node).second;
  const bool waits = TakeAwaited(beat);
  return left || waits;
}

bool JobDepartures::TakeAwaited(const v1::HeartbeatRequest& beat) {
  const size_t before = awaited_.size();
  const int taken = std::min(beat.awaited_size(), kMostAwaitedOfBeat);
  for (int i = 0; i < taken && awaited_.size() < kMostAwaitedOfJob; ++i) {
    const v1::AwaitedRound& round = beat.awaited(i);
    if (round.name().size() > kMaxNameBytes) continue;
    if (round.participants().size() > kMaxParticipantsBytes) continue;
    awaited_.emplace(round.tensor_id(), round.name(), round.participants(), round.round());
  }
  return awaited_.size() > before;
}

void JobDepartures::Fill(const Agreements& tensors, v1::NodeUpdate* update) const {
  update->clear_awaited();
  if (nodes_.empty()) return;
  update->set_departed(true);
  for (const auto& [id, name, participants, round] : awaited_) {
    if (id == 0 && IsPlanned(tensors, name)) continue;
    v1::AwaitedRound* const awaited = update->add_awaited();
    awaited->set_tensor_id(id);
    awaited->set_name(name);
    awaited->set_participants(participants);
    awaited->set_round(round);
  }
}

void JobDepartures::Forget(const std::string& name) {
  std::erase_if(awaited_, [&name](const auto& awaited) { return std::get<1>(awaited) == name; });
}

}  // namespace addend
