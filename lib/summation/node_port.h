// The server's end of an admitted node's link, as the job sees it: the send queue, and the receive
// buffers. Owned by the NodeLink. Belongs to a shard's thread.
//
// The queue is bounded: a node that requests frames faster than it reads them is closed with
// RESOURCE_EXHAUSTED, since the frames that wait for it take memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lib/base/ids.h"
#include "lib/summation/job_state.h"
#include "lib/summation/landing.h"
#include "lib/transport/outbox.h"
#include "lib/transport/transport.h"

namespace addend {

// "node 3", or of a RelayId() "summation server 7": for messages.
std::string Describe(NodeId sender);

class NodePort {
 public:
  // `link` and `traits`, of the link's transport, outlive the port.
  NodePort(Link* link, const Traits* traits, const SendLimits& limits)
      : link_(link), traits_(traits), outbox_(limits) {}

  // ---- membership ----
  // The link is that of this node from now on. `job` outlives the membership.
  void Join(const JobState* job, NodeId node) {
    job_ = job;
    node_ = node;
  }
  // The node's membership ends, and the link closes.
  void Leave(const absl::Status& why) {
    job_ = nullptr;
    link_->Close(why);
  }
  bool is_member() const { return job_ != nullptr; }
  // Of a relay: its RelayId().
  NodeId node() const { return node_; }
  std::string Name() const { return Describe(node_); }

  // ---- sending ----
  // Starts sending the frames of the queue.
  // `encodes`: the node takes encoded payloads.
  void Attach(bool encodes) { outbox_.Attach(link_, *traits_, encodes); }
  // The link is closed: the Dones of all queued frames run with `why`.
  void Detach(const absl::Status& why) {
    outbox_.Detach();
    outbox_.Clear(why);
  }
  // Queues a frame (Outbox::Push).
  void Push(const FrameHeader& header, Bytes payload = {}, Done done = nullptr,
            int64_t* handed_at = nullptr, EncodeFn encode = nullptr);
  // Queues a frame of which a node that reads has few waiting: a result, or a header that says
  // where a partition stands. While the same frame still waits, it is not queued again, and `done`
  // is destroyed without a call.
  void PushOnce(const FrameHeader& header, Bytes payload = {}, Done done = nullptr,
                EncodeFn encode = nullptr);
  // The same frame still waits, and has not been handed to the link. Counts the request: the caller
  // asks when the frame is due again.
  bool StillWaits(const FrameHeader& header);
  size_t queued() const { return outbox_.queued(); }
  void LimitInFlight(size_t bytes) { link_->LimitInFlight(bytes); }
  void Close(const absl::Status& why) { link_->Close(why); }

  // ---- receiving ----
  Landing& landing() { return landing_; }
  const Landing& landing() const { return landing_; }
  // The payload of a frame that has arrived; empty if the transport has not asked for a place.
  Landing::Placed TakePlaced(const FrameHeader& header) {
    if (traits_->by_reference || header.payload_bytes == 0) return {};
    return landing_.Take();
  }
  // Payloads, and so the partitions that keep them, refer to the node's own memory.
  bool by_reference() const { return traits_->by_reference; }
  const std::string& transport() const { return traits_->name; }
  std::string peer() const { return link_->peer(); }

 private:
  // The queued frames of a kind about a partition. Their Dones count them.
  struct Unsent {
    int frames = 0;
    int repeated = 0;  // requests for the last frame
    Round round;       // of the last frame
    PlanVersion version;
    std::shared_ptr<const int64_t> handed_at;  // of the last frame; 0 while it waits
  };
  using Kind = std::pair<PartitionId, uint32_t>;
  static Kind KindOf(const FrameHeader& header);
  void CloseUnread();

  Link* const link_;
  const Traits* const traits_;
  const JobState* job_ = nullptr;
  NodeId node_;
  absl::flat_hash_map<Kind, Unsent> unsent_;
  Outbox outbox_;
  Landing landing_;
};

}  // namespace addend
