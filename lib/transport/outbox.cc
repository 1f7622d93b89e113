#include "lib/transport/outbox.h"

#include <utility>

namespace addend {

void Outbox::Attach(Link* link, bool by_reference) {
  link_ = link;
  by_reference_ = by_reference;
  in_flight_bytes_ = 0;
  self_ = std::make_shared<Outbox*>(this);
  Pump();
}

void Outbox::Push(const FrameHeader& header, Bytes payload, Done done) {
  queue_.push(std::make_unique<Item>(Item{header, payload, std::move(done), next_sequence_++}));
  Pump();
}

void Outbox::Clear(const absl::Status& why) {
  while (!queue_.empty()) {
    Done done = std::move(queue_.top()->done);
    queue_.pop();
    if (done) done(why);
  }
}

void Outbox::Pump() {
  while (link_ != nullptr && !queue_.empty() &&
         (by_reference_ || in_flight_bytes_ < kWindowBytes)) {
    // top() is const only to protect the order, which pop() ends.
    std::unique_ptr<Item> item = std::move(const_cast<std::unique_ptr<Item>&>(queue_.top()));
    queue_.pop();
    const size_t bytes = kFrameHeaderBytes + item->payload.size();
    in_flight_bytes_ += bytes;
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
}

}  // namespace addend
