// order_ has the next frame of every outbox by its place in the node's stream: the first entry is
// the link that is furthest behind. When that link moves on, outboxes that were held back may
// continue.

#include "lib/transport/convoy.h"

#include <utility>
#include <vector>

#include "lib/transport/outbox.h"

namespace addend {

void Convoy::Update(Outbox* outbox, std::optional<Frame> next, bool held) {
  const uint64_t number = outbox->number_;
  if (held) {
    held_.emplace(number, outbox);
  } else {
    held_.erase(number);
  }
  const auto former = next_.find(number);
  if (former == next_.end() ? !next : next == former->second) return;
  bool was_last = false;
  if (former != next_.end()) {
    const auto position = order_.find({former->second.place, number});
    was_last = position == order_.begin();
    order_.erase(position);
    next_.erase(former);
  }
  if (next) {
    order_.insert({next->place, number});
    next_[number] = *next;
  }
  if (was_last) ReleaseHeld();
}

// A frame may leave if no other link has a frame of at least its priority that is more than
// lead_bytes behind it.
bool Convoy::MayLeave(uint64_t outbox, const Frame& frame) const {
  for (const auto& [place, other] : order_) {
    if (place + limits_.lead_bytes >= frame.place) return true;
    if (other != outbox && next_.at(other).priority >= frame.priority) return false;
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
