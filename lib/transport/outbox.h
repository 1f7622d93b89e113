// A send queue for a link: the most urgent first (urgency.h), then in the order of pushing. Only a
// window of bytes is handed to the link at a time, so that urgent frames overtake the frames that
// wait here. Outboxes of a convoy keep side by side. Belongs to one shard's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/encoding/payload_encoder.h"
#include "lib/transport/convoy.h"
#include "lib/transport/send_limits.h"
#include "lib/transport/transport.h"

namespace addend {

class Outbox {
 public:
  using WaitingFn = absl::AnyInvocable<void(bool waiting)>;

  explicit Outbox(const SendLimits& limits) : window_bytes_(limits.window_bytes) {}
  // `convoy`, which must outlive the outbox, holds back links that copy. `on_waiting` is called
  // when frames begin to wait here, and when no frame waits any more.
  Outbox(Convoy* convoy, WaitingFn on_waiting)
      : convoy_(convoy), on_waiting_(std::move(on_waiting)) {}
  // Frames that were not handed to a link run their Done with CANCELLED.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Starts sending through `link`, which belongs to a transport with these traits and must stay
  // open until Detach(). `encodes`: its peer takes encoded payloads.
  void Attach(Link* link, const Traits& traits, bool encodes = false);
  void Detach();
  // `payload` is lent until `done` runs, and so is `*handed_at`, which is set to TraceNow() when
  // the frame is handed to the link. May be called before Attach(). `place`: the frame's position
  // in the convoy's stream; 0: the frame is not part of a convoy. `encode`, which may be null: run
  // when the frame is handed to a link that copies, and whose peer takes encoded payloads.
  void Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place = 0,
            int64_t* handed_at = nullptr, EncodeFn encode = nullptr);
  void Clear(const absl::Status& why);
  // The result of a contribution that was pushed with a place has come, or is not expected here any
  // more.
  void Arrived(PartitionId partition) {
    if (ConvoyKnows()) convoy_->OnArrived(number_, partition);
  }
  size_t queued() const { return queue_.size(); }
  // The bytes that may be handed to the link before an earlier frame is done. 0 with by_reference.
  size_t credit_bytes() const;

 private:
  friend class Convoy;
  struct Item {
    FrameHeader header;
    Bytes payload;
    Done done;
    uint64_t sequence;
    uint64_t place;
    int64_t* handed_at;
    EncodeFn encode;
    int32_t urgency;  // of the convoy; without one, the priority
  };
  static bool Later(const std::unique_ptr<Item>& a, const std::unique_ptr<Item>& b) {
    if (a->urgency != b->urgency) return a->urgency < b->urgency;
    return a->sequence > b->sequence;
  }
  int32_t UrgencyOf(int32_t priority) const {
    return convoy_ == nullptr ? priority : convoy_->UrgencyOf(priority);
  }
  // The urgencies of the convoy have changed. Pump() follows.
  void Reorder();
  void Pump();
  std::unique_ptr<Item> TakeNext();
  void SendNext();
  void Encode(Item* item) const;
  size_t Window() const;
  bool HasRoom() const;
  std::optional<Convoy::Frame> NextInConvoy() const;
  void Changed();
  // Counts a frame that begins or ceases to wait. The convoy knows of it while the link is open and
  // copies.
  void Count(const Item& item, bool waits);
  void CountAll(bool wait);
  bool ConvoyKnows() const { return convoy_ != nullptr && link_ != nullptr && !by_reference_; }

  const size_t window_bytes_ = 0;  // used without a convoy
  Convoy* const convoy_ = nullptr;
  const uint64_t number_ = convoy_ == nullptr ? 0 : convoy_->Join(this);
  WaitingFn on_waiting_;
  bool waiting_ = false;
  Link* link_ = nullptr;
  bool by_reference_ = false;
  bool encodes_ = false;
  size_t window_of_link_ = 0;
  size_t in_flight_bytes_ = 0;
  std::map<int32_t, uint64_t> placed_bytes_;  // queued frames with a place, by urgency
  uint64_t next_sequence_ = 0;
  std::vector<std::unique_ptr<Item>> queue_;  // a heap: the frame that is sent next is the first
  // Replaced at every Attach(): the Dones of a former link must not count for the current link.
  std::shared_ptr<Outbox*> self_;
};

}  // namespace addend
