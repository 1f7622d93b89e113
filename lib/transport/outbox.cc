// Pump() hands frames to the link while the window has room and the convoy lets the next frame
// leave. Each Done makes room and pumps again. A Done may come after the outbox is gone: it holds a
// weak reference.

#include "lib/transport/outbox.h"

#include <algorithm>
#include <utility>

#include "lib/trace/clock.h"

namespace addend {

Outbox::~Outbox() {
  if (convoy_ != nullptr) convoy_->Leave(number_);
  Clear(absl::CancelledError("not sent"));
}

void Outbox::Attach(Link* link, const Traits& traits, bool encodes) {
  CountAll(false);  // with a former link
  if (convoy_ != nullptr) convoy_->OnLost(number_);
  link_ = link;
  by_reference_ = traits.by_reference;
  encodes_ = encodes && !by_reference_ && !traits.same_machine;
  window_of_link_ = traits.window_bytes;
  in_flight_bytes_ = 0;
  self_ = std::make_shared<Outbox*>(this);
  if (ConvoyKnows()) convoy_->OnLinked(number_);
  CountAll(true);
  Pump();
}

void Outbox::Detach() {
  CountAll(false);
  link_ = nullptr;
  if (convoy_ != nullptr) convoy_->OnLost(number_);
  Changed();
  if (convoy_ != nullptr) convoy_->ReleaseHeld();  // frames that these held back
}

void Outbox::Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place,
                  int64_t* handed_at, EncodeFn encode) {
  auto item =
      std::make_unique<Item>(Item{header, payload, std::move(done), next_sequence_++, place,
                                  handed_at, std::move(encode), UrgencyOf(header.priority)});
  Count(*item, true);
  queue_.push_back(std::move(item));
  std::push_heap(queue_.begin(), queue_.end(), Later);
  Pump();
}

void Outbox::Reorder() {
  for (const auto& item : queue_) {
    Count(*item, false);
    item->urgency = UrgencyOf(item->header.priority);
    Count(*item, true);
  }
  std::make_heap(queue_.begin(), queue_.end(), Later);
  Changed();
}

void Outbox::Clear(const absl::Status& why) {
  while (!queue_.empty()) {
    Done done = std::move(TakeNext()->done);  // the frame's own references end first
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
  const Item& next = *queue_.front();
  if (next.place == 0) return std::nullopt;
  return Convoy::Frame{next.place, next.urgency};
}

void Outbox::Count(const Item& item, bool waits) {
  if (convoy_ == nullptr || item.place == 0) return;
  const uint64_t bytes = kFrameHeaderBytes + item.payload.size();
  if (waits) {
    placed_bytes_[item.urgency] += bytes;
    if (ConvoyKnows()) convoy_->AddWaiting(item.urgency, bytes);
    return;
  }
  const auto placed = placed_bytes_.find(item.urgency);
  placed->second -= bytes;
  if (placed->second == 0) placed_bytes_.erase(placed);
  if (ConvoyKnows()) convoy_->RemoveWaiting(item.urgency, bytes);
}

void Outbox::CountAll(bool wait) {
  if (!ConvoyKnows()) return;
  for (const auto& [urgency, bytes] : placed_bytes_) {
    wait ? convoy_->AddWaiting(urgency, bytes) : convoy_->RemoveWaiting(urgency, bytes);
  }
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

// Only now: an encoding needs memory until it is sent, and is sent while it is in the cache.
void Outbox::Encode(Item* item) const {
  if (!encodes_ || item->encode == nullptr) return;
  EncodedPayload encoded = item->encode();
  if (encoded.content.raw()) return;
  item->header.encoding = encoded.content.encoding;
  item->header.uncompressed_bytes = static_cast<uint32_t>(item->payload.size());
  item->payload = encoded.content.bytes;
  item->done = [keep = std::move(encoded.keep),
                done = std::move(item->done)](absl::Status status) mutable {
    if (done) done(std::move(status));
  };
}

std::unique_ptr<Outbox::Item> Outbox::TakeNext() {
  std::pop_heap(queue_.begin(), queue_.end(), Later);
  std::unique_ptr<Item> item = std::move(queue_.back());
  queue_.pop_back();
  Count(*item, false);
  return item;
}

void Outbox::SendNext() {
  std::unique_ptr<Item> item = TakeNext();
  Encode(item.get());
  const size_t bytes = kFrameHeaderBytes + item->payload.size();
  in_flight_bytes_ += bytes;
  if (ConvoyKnows() && item->place != 0) convoy_->OnSent(number_, item->header, bytes);
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
