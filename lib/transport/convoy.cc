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

void Convoy::OnPush(int32_t priority, uint64_t bytes) {
  if (!urgency_.OnPush(priority, bytes)) return;
  // No outbox sends before all have the new order.
  const bool releasing = std::exchange(releasing_, true);
  for (const auto& [number, outbox] : outboxes_) outbox->Reorder();
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

// A frame may leave if little waits that is more urgent, and no other link has a frame of at least
// its urgency that is more than lead_bytes behind it.
bool Convoy::MayLeave(uint64_t outbox, const Frame& frame) const {
  if (ManyMoreUrgent(frame.urgency)) return false;
  for (const auto& [place, other] : order_) {
    if (place + limits_.lead_bytes >= frame.place) return true;
    if (other != outbox && next_.at(other).urgency >= frame.urgency) return false;
  }
  return true;
}

// Repeats while outboxes move: other outboxes may wait for an outbox that was released.
void Convoy::ReleaseHeld() {
  if (releasing_) return;
  releasing_ = true;
  for (bool moved = true; moved;) {
    moved = false;
    const std::vector<std::pair<uint64_t, Outbox*>> waiting(held_.begin(), held_.end());
    for (const auto& [number, outbox] : waiting) {
      if (!held_.contains(number) || !MayLeave(number, next_.at(number))) continue;
      outbox->Pump();
      moved = true;
    }
  }
  releasing_ = false;
}

}  // namespace addend
