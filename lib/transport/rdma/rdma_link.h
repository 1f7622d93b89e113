// A link over RDMA: a queue pair on each NIC that both ends use together, and the conversation
// beside them (signals.h). Messages go through the first queue pair, by credit. Large payloads go
// through all queue pairs in turn, written by the sender straight to the place that the receiver's
// sink has chosen.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/line_pace.h"
#include "lib/memory/arena.h"
#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/link_turns.h"
#include "lib/transport/rdma/completions.h"
#include "lib/transport/rdma/incoming.h"
#include "lib/transport/rdma/message.h"
#include "lib/transport/rdma/outgoing.h"
#include "lib/transport/rdma/queue_pair.h"
#include "lib/transport/rdma/signals.h"
#include "lib/transport/transport.h"
#include "lib/wire/link_version.h"

namespace addend::rdma {

class RdmaLink final : public Link, private CompletionTaker, private FrameHost {
 public:
  // State that all links of a transport share; outlives them.
  struct Shared {
    EventLoop* loop;
    CompletionTable table;
    TransportStats stats;
    LinePace blamed{};
    uint32_t in_flight_max;
    LinkTurns turns{loop};
  };
  // Called once before the link is open: with OK when the peer's first message has come, and the
  // callee opens the link; with an error if the link fails before.
  using DecideFn = absl::AnyInvocable<void(absl::Status)>;
  // The link is gone when this returns.
  using GoneFn = absl::AnyInvocable<void(RdmaLink*)>;

  // The link starts in `group`. It reaches only the memory of `domain` (Device::DomainOf).
  RdmaLink(Shared* shared, std::string peer, std::unique_ptr<Signals> signals,
           FairTurns::GroupId group, uint64_t domain, DecideFn decide, GoneFn gone);
  ~RdmaLink() override;

  // ---- connection setup ----
  // Adds a queue pair that can be connected; the first queue pair also carries the link's messages.
  absl::StatusOr<LaneAddress> AddLane(CompletionQueue* completions);
  // Connects each lane to its peer; drops the lanes without a peer. `peers`: the peers' ends, by
  // lane.
  absl::Status Connect(const std::vector<std::optional<LaneAddress>>& peers);
  // Sends the first message. When it arrives, the peer's end is decided, and greets in return.
  absl::Status Greet();
  Signals* signals() { return signals_.get(); }
  bool connected() const { return buffers_ != nullptr; }
  bool decided() const { return !decide_; }
  // Handles a signal of the conversation, on the loop. An error: the conversation has ended.
  void OnSignal(absl::StatusOr<Signal> signal);
  // Hands the link to `sink`. Null: the link only closes.
  void Open(Sink* sink);
  // Closes at once. Called by the transport's destructor.
  void Abandon(absl::Status why);
  // A queue pair of the device (0: all of them) has failed.
  void OnDeviceFailure(const Device* device, uint32_t queue_pair, const absl::Status& why);

  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_; }
  absl::Duration sending_time() const override;
  absl::Status Encrypt(const LinkKeys&) override {
    return absl::UnimplementedError("a link over RDMA cannot be encrypted");
  }
  void LimitInFlight(size_t bytes) override { outgoing_.LimitAnnounced(bytes); }
  void Share(uint64_t group) override { shared_->turns.Join(&taker_, group); }

 private:
  // Waits for its turn to grant announced payloads, and to hand over frames.
  struct Taker final : FairTurns::Waiter {
    explicit Taker(RdmaLink* link) : link(link) {}
    Work Serve(size_t most) override { return link->TakeSome(most); }
    RdmaLink* const link;
  };
  FairTurns::Waiter::Work TakeSome(size_t most);
  absl::Status MakeBuffers();
  absl::Status PostMessageReceive(int buffer);
  void OnCompletion(const WorkId& id, const ibv_wc& completion) override;
  absl::Status OnReceived(const WorkId& id, const ibv_wc& completion);
  absl::Status OnMessage(int buffer, size_t bytes);
  absl::Status OnGrant(const MessageHead& head);

  absl::Status Grant(uint32_t number, MutableBytes room, Registered* memory) override;
  absl::Status FreeBuffer(int buffer) override;
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status Take(const FrameHeader& header, Bytes payload) override;
  bool closing() const override { return closing_; }

  void Turn();
  absl::Status SendSome();
  absl::Status SendMessage(MessageHead head, const FrameHeader* header, Bytes payload);
  void CountBusy();
  // Fails the link because of the path, not the peer.
  void FailPath(const absl::Status& why) { Fail(PathFailure(why), /*tell=*/true); }
  void Fail(absl::Status why, bool tell);
  void Finish();

  // Constant after construction.
  Shared* const shared_;
  const uint32_t owner_;  // number in the completion table
  const std::string peer_;
  const uint64_t domain_;
  std::unique_ptr<Signals> signals_;
  DecideFn decide_;  // null once decided
  GoneFn gone_;

  // Owned by the loop's thread.
  Sink* sink_ = nullptr;
  bool greeted_ = false;
  // Receive buffers first, then send buffers.
  std::shared_ptr<Arena> buffers_;
  uint32_t buffers_key_ = 0;
  std::vector<std::unique_ptr<QueuePair>> lanes_;  // destroyed first: nothing arrives any more
  std::vector<int> free_sends_;
  std::deque<MessageHead> control_;  // grants, drops and the like that wait for a send buffer
  uint16_t owed_credits_ = 0;
  uint32_t next_lane_ = 0;
  LinkVersion version_;
  OutgoingFrames outgoing_;
  IncomingFrames incoming_{this};
  Taker taker_{this};
  bool closing_ = false;
  absl::Status why_;
  absl::Time busy_since_ = absl::InfiniteFuture();
  absl::Duration busy_;
  EndOfTurn turn_{shared_->loop, [this] { Turn(); }};
};

}  // namespace addend::rdma
