// Sends frames through a link by priority: larger first, then in the order of pushing. Only a
// window of bytes is handed to the link at a time, so that what is urgent overtakes what waits
// here. Belongs to one shard's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

#include "lib/transport/transport.h"

namespace addend {

class Outbox {
 public:
  // The window of a link that copies. Payloads passed by reference cost nothing in flight and are
  // not limited: a window would let early contributions, which the receiver keeps, block later
  // ones.
  static constexpr size_t kWindowBytes = 256 * 1024;

  Outbox() = default;
  // Frames that were not handed to a link run their Done with CANCELLED.
  ~Outbox() { Clear(absl::CancelledError("not sent")); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Starts sending through `link`, which must stay open until Detach().
  void Attach(Link* link, bool by_reference);
  void Detach() { link_ = nullptr; }
  // `payload` is lent until `done`. May be called before Attach().
  void Push(const FrameHeader& header, Bytes payload, Done done);
  void Clear(const absl::Status& why);
  size_t queued() const { return queue_.size(); }

 private:
  struct Item {
    FrameHeader header;
    Bytes payload;
    Done done;
    uint64_t sequence;
  };
  struct Later {
    bool operator()(const std::unique_ptr<Item>& a, const std::unique_ptr<Item>& b) const {
      if (a->header.priority != b->header.priority) return a->header.priority < b->header.priority;
      return a->sequence > b->sequence;
    }
  };
  void Pump();

  Link* link_ = nullptr;
  bool by_reference_ = false;
  size_t in_flight_bytes_ = 0;
  uint64_t next_sequence_ = 0;
  std::priority_queue<std::unique_ptr<Item>, std::vector<std::unique_ptr<Item>>, Later> queue_;
  // A new one for every Attach: the Dones of a former link must not count for this one.
  std::shared_ptr<Outbox*> self_;
};

}  // namespace addend
