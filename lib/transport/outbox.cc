// Pump() hands frames to the link while the window has room and the convoy lets the next frame
// leave. Each Done makes room and pumps again. A Done may come after the outbox is gone: it holds a
// weak reference.

#include "lib/transport/outbox.h"

#include <algorithm>
#include <utility>

#include "lib/trace/clock.h"

namespace addend {

void Outbox::Attach(Link* link, const Traits& traits) {
  link_ = link;
  by_reference_ = traits.by_reference;
  window_of_link_ = traits.window_bytes;
  in_flight_bytes_ = 0;
  self_ = std::make_shared<Outbox*>(this);
  Pump();
}

void Outbox::Detach() {
  link_ = nullptr;
  Changed();
}

void Outbox::Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place,
                  int64_t* handed_at) {
  queue_.push(std::make_unique<Item>(
      Item{header, payload, std::move(done), next_sequence_++, place, handed_at}));
  Pump();
}

void Outbox::Clear(const absl::Status& why) {
  while (!queue_.empty()) {
    Done done = std::move(queue_.top()->done);
    queue_.pop();
    if (done) done(why);
  }
  Changed();
}

size_t Outbox::Window() const {
  const size_t window = convoy_ == nullptr ? window_bytes_ : convoy_->limits().window_bytes;
  return std::max(window, window_of_link_);
}

bool Outbox::HasRoom() const { return by_reference_ || in_flight_bytes_ < Window(); }

size_t Outbox::credit_bytes() const {
  return by_reference_ ? 0 : Window() - std::min(Window(), in_flight_bytes_);
}

std::optional<Convoy::Frame> Outbox::NextInConvoy() const {
  if (convoy_ == nullptr || link_ == nullptr || by_reference_ || queue_.empty()) {
    return std::nullopt;
  }
  const Item& next = *queue_.top();
  if (next.place == 0) return std::nullopt;
  return Convoy::Frame{next.place, next.header.priority};
}

void Outbox::Changed() {
  if (convoy_ == nullptr) return;
  if (queue_.empty() == waiting_) on_waiting_(waiting_ = !waiting_);
  const auto next = NextInConvoy();
  convoy_->Update(this, next, next && HasRoom());
}

void Outbox::Pump() {
  while (link_ != nullptr && !queue_.empty() && HasRoom()) {
    const auto frame = NextInConvoy();
    if (frame && !convoy_->MayLeave(number_, *frame)) break;
    SendNext();
  }
  Changed();
}

void Outbox::SendNext() {
  // top() is const only to protect the order of the heap, and pop() follows.
  std::unique_ptr<Item> item = std::move(const_cast<std::unique_ptr<Item>&>(queue_.top()));
  queue_.pop();
  const size_t bytes = kFrameHeaderBytes + item->payload.size();
  in_flight_bytes_ += bytes;
  if (item->handed_at != nullptr) *item->handed_at = TraceNow();
  link_->Send(item->header, item->payload,
              [self = std::weak_ptr<Outbox*>(self_), bytes,
               done = std::move(item->done)](absl::Status status) mutable {
                if (done) done(status);
                const auto outbox = self.lock();
                if (!outbox || !status.ok()) return;
                (*outbox)->in_flight_bytes_ -= bytes;
                (*outbox)->Pump();
              });
}

}  // namespace addend
