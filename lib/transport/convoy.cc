#include "lib/transport/convoy.h"

#include <vector>

#include "lib/transport/outbox.h"

namespace addend {

void Convoy::Update(Outbox* outbox, std::optional<Frame> next, bool held) {
  if (held) {
    held_.insert(outbox);
  } else {
    held_.erase(outbox);
  }
  const auto former = next_.find(outbox);
  if (former == next_.end() ? !next : next == former->second) return;
  bool was_last = false;
  if (former != next_.end()) {
    const auto position = order_.find({former->second.place, outbox});
    was_last = position == order_.begin();
    order_.erase(position);
    next_.erase(former);
  }
  if (next) {
    order_.insert({next->place, outbox});
    next_[outbox] = *next;
  }
  if (was_last) ReleaseHeld();
}

bool Convoy::MayLeave(const Outbox* outbox, const Frame& frame) const {
  for (const auto& [place, other] : order_) {
    if (place + limits_.lead_bytes >= frame.place) return true;
    if (other != outbox && next_.at(other).priority >= frame.priority) return false;
  }
  return true;
}

// Those that go on may in turn be what others wait for.
void Convoy::ReleaseHeld() {
  if (releasing_) return;
  releasing_ = true;
  for (bool moved = true; moved;) {
    moved = false;
    const std::vector<Outbox*> waiting(held_.begin(), held_.end());
    for (Outbox* outbox : waiting) {
      if (!held_.contains(outbox) || !MayLeave(outbox, next_.at(outbox))) continue;
      outbox->Pump();
      moved = true;
    }
  }
  releasing_ = false;
}

}  // namespace addend
