// order_ has the next frame of every outbox by its place in the node's stream: the first entry is
// the link that is furthest behind. When the next frame of any outbox changes, outboxes that were
// held back may continue.

#include "lib/transport/convoy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/transport/outbox.h"

namespace addend {
namespace {

// Bounds the urgencies that ManyMoreUrgent looks at.
constexpr uint64_t kLeastCounted = 4 << 10;

}  // namespace

uint64_t Convoy::Join(Outbox* outbox) {
  outboxes_[++last_number_] = outbox;
  return last_number_;
}

void Convoy::Leave(uint64_t number) {
  OnLost(number);
  outboxes_.erase(number);
}

void Convoy::OnPush(int32_t priority, uint64_t bytes) {
  if (!urgency_.OnPush(priority, bytes)) return;
  // No outbox sends before all have the new order.
  const bool releasing = std::exchange(releasing_, true);
  for (const auto& [number, outbox] : outboxes_) outbox->Reorder();
  pace_.Reorder([this](int32_t each) { return UrgencyOf(each); });
  releasing_ = releasing;
  const std::map<uint64_t, Outbox*> all = outboxes_;
  for (const auto& [number, outbox] : all) {
    if (outboxes_.contains(number)) outbox->Pump();
  }
}

void Convoy::Update(Outbox* outbox, std::optional<Frame> next, bool held) {
  const uint64_t number = outbox->number_;
  if (held) {
    held_.emplace(number, outbox);
    if (!pace_.HasRoom(next->urgency)) WatchPace();  // nothing else may have changed
  } else {
    held_.erase(number);
  }
  const auto former = next_.find(number);
  if (former == next_.end() ? !next : next == former->second) return;
  if (former != next_.end()) {
    order_.erase({former->second.place, number});
    next_.erase(former);
  }
  if (next) {
    order_.insert({next->place, number});
    next_[number] = *next;
  }
  ReleaseHeld();
}

void Convoy::RemoveWaiting(int32_t urgency, uint64_t bytes) {
  const auto waiting = waiting_.find(urgency);
  waiting->second -= bytes;
  if (waiting->second == 0) waiting_.erase(waiting);
}

bool Convoy::ManyMoreUrgent(int32_t urgency) const {
  uint64_t bytes = 0;
  for (const auto& [urgent, waiting] : waiting_) {
    if (urgent <= urgency || bytes > limits_.lead_bytes) break;
    bytes += std::max(waiting, kLeastCounted);
  }
  return bytes > limits_.lead_bytes;
}

// A frame may leave if few bytes wait for results, little waits that is more urgent, and no other
// link has a frame of at least its urgency that is more than lead_bytes behind it.
bool Convoy::MayLeave(uint64_t outbox, const Frame& frame) const {
  if (!pace_.HasRoom(frame.urgency) || ManyMoreUrgent(frame.urgency)) return false;
  for (const auto& [place, other] : order_) {
    if (place + limits_.lead_bytes >= frame.place) return true;
    if (other != outbox && next_.at(other).urgency >= frame.urgency) return false;
  }
  return true;
}

void Convoy::OnLinked(uint64_t outbox) {
  linked_.insert(outbox);
  pace_.SetLinks(linked_.size());
}

void Convoy::OnLost(uint64_t outbox) {
  pace_.OnLost(outbox);
  linked_.erase(outbox);
  pace_.SetLinks(linked_.size());
}

void Convoy::OnSent(uint64_t outbox, const FrameHeader& header, uint64_t bytes) {
  if (loop_ == nullptr) return;
  pace_.OnSent(outbox, header.partition, header.priority, UrgencyOf(header.priority), bytes,
               loop_->Now());
}

void Convoy::OnArrived(uint64_t outbox, PartitionId partition) {
  if (loop_ != nullptr && pace_.OnArrived(outbox, partition, loop_->Now())) ReleaseHeld();
}

void Convoy::WatchPace() {
  if (watching_) return;
  watching_ = true;
  loop_->RunAfter(ContributionPace::kSilence, [this] {
    watching_ = false;
    pace_.OnTime(loop_->Now());
    ReleaseHeld();
  });
}

// The furthest behind first. Repeats while outboxes move: other outboxes may wait for an outbox
// that was released.
void Convoy::ReleaseHeld() {
  if (releasing_) return;
  releasing_ = true;
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<std::pair<uint64_t, uint64_t>> waiting;
    for (const auto& [number, outbox] : held_) waiting.emplace_back(next_.at(number).place, number);
    std::sort(waiting.begin(), waiting.end());
    for (const auto& [place, number] : waiting) {
      const auto held = held_.find(number);
      if (held == held_.end() || !MayLeave(number, next_.at(number))) continue;
      held->second->Pump();
      moved = true;
    }
  }
  releasing_ = false;
  const bool paced = std::any_of(held_.begin(), held_.end(), [this](const auto& held) {
    return !pace_.HasRoom(next_.at(held.first).urgency);
  });
  if (paced) WatchPace();
}

}  // namespace addend
