// A summation server's end of the link to one node: the handshake, where contributions land, and
// the results that wait to be sent. Belongs to one shard.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/base/status_macros.h"
#include "lib/memory/arena.h"
#include "lib/summation/latest_partition.h"
#include "lib/summation/partition.h"
#include "lib/transport/outbox.h"
#include "lib/transport/transport.h"

namespace addend {

class Shard;
struct ShardJob;

class NodeLink final : public Sink {
 public:
  // `shard` and `traits` outlive the link. Nothing is allocated for the peer before it has proved
  // the token.
  NodeLink(Shard* shard, Link* link, const Traits* traits, const SendLimits& limits)
      : shard_(shard), link_(link), traits_(traits), since_(absl::Now()), outbox_(limits) {}

  absl::Time since() const { return since_; }  // it came
  // It has not said who it is, and has not been told to go.
  bool is_stranger() const { return is_stranger_; }
  void Dismiss(const absl::Status& why) {
    is_stranger_ = false;
    link_->Close(why);
  }
  // After the handshake.
  ShardJob* job() const { return job_; }
  NodeId node() const { return node_; }
  Generation generation() const { return generation_; }
  Link* link() const { return link_; }
  const std::string& transport() const { return traits_->name; }
  // A payload for this partition is being received.
  bool IsReceiving(const Partition& partition) const;
  // Sends when it is its turn (Outbox::Push). A node that asks for more than it reads is closed
  // with RESOURCE_EXHAUSTED, since what waits for it takes memory.
  void Push(const FrameHeader& header, Bytes payload = {}, Done done = nullptr);
  // The same for a result, of which a node that reads has few waiting.
  void PushResult(const FrameHeader& header, Bytes result, Done done);
  size_t queued() const { return outbox_.queued(); }

  // The job is forgotten or starts over: the link must close.
  void LeaveJob() { job_ = nullptr; }

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override;
  void OnClosed(absl::Status why) override;

 private:
  // A payload that is being received.
  struct Placed {
    std::shared_ptr<Partition> partition;      // keeps the accumulator that is read into
    std::shared_ptr<LatestPartition> latest;   // instead of it, in asynchronous mode
    std::unique_ptr<EarlyContribution> early;  // its buffer, when it comes early
    std::shared_ptr<Arena> own;                // or where else it lands, if not in `scratch_`
    int64_t began = 0;                         // TraceNow() of its first byte
  };
  absl::StatusOr<MutableBytes> RoomFor(const FrameHeader& header, Placed* placed);
  absl::StatusOr<MutableBytes> ScratchFor(size_t bytes, Placed* placed);
  absl::StatusOr<std::shared_ptr<Arena>> TakeSpare(size_t bytes);
  // Of the frame that has arrived; nothing if Place() was not called for it.
  Placed TakePlaced(const FrameHeader& header);

  void CloseUnread();
  absl::Status OnHello(const FrameHeader& header, Bytes opening);
  absl::Status OnProof(const FrameHeader& header, Bytes proof);
  absl::Status Welcome(const auth::Secret& token);
  absl::Status OnContribution(const FrameHeader& header, Payload payload);
  absl::StatusOr<MutableBytes> PlaceAudit(const FrameHeader& header);
  absl::Status OnAudit(const FrameHeader& header, Payload payload);
  absl::Status TakeContribution(Partition* partition, const FrameHeader& header, Payload payload,
                                Placed* placed);
  absl::Status OnReport(const FrameHeader& header);
  absl::Status OnSync(const FrameHeader& header);
  absl::Status OnSupplied(const FrameHeader& header, Payload payload);
  absl::Status OnItsTurn(Partition* partition, const FrameHeader& header, Payload payload);
  absl::Status OnEarly(Partition* partition, const FrameHeader& header, Payload payload,
                       std::unique_ptr<EarlyContribution> early);
  // The partition that a node's frame is about, after all that can be wrong with the header has
  // been checked. Null: it is not here (any more); the node will learn who has it.
  absl::StatusOr<std::shared_ptr<Partition>> Find(const FrameHeader& header) const;
  absl::Status CheckSender(const FrameHeader& header) const;
  // Of a contribution or result. INVALID_ARGUMENT: it does not fit the partition.
  static absl::Status CheckFit(const FrameHeader& header, const Partition::Spec& spec);
  // In the map that frames of its operation are about; one of the other map does not fit.
  template <typename Held, typename Others>
  static absl::StatusOr<typename Held::mapped_type> FindAmong(const Held& held,
                                                              const Others& others,
                                                              const FrameHeader& header) {
    if (const auto it = held.find(header.partition); it != held.end()) {
      ADDEND_RETURN_IF_ERROR(CheckFit(header, it->second->spec()));
      return it->second;
    }
    if (const auto other = others.find(header.partition); other != others.end()) {
      ADDEND_RETURN_IF_ERROR(CheckFit(header, other->second->spec()));
    }
    return nullptr;
  }

  // ---- asynchronous mode (node_link_latest.cc) ----
  static bool IsAboutLatest(const FrameHeader& header);
  absl::StatusOr<std::shared_ptr<LatestPartition>> FindLatest(const FrameHeader& header) const;
  absl::StatusOr<MutableBytes> PlaceLatest(const FrameHeader& header);
  absl::Status OnLatestFrame(const FrameHeader& header, Payload payload);
  absl::Status OnUpdate(LatestPartition* partition, const FrameHeader& header, Bytes update);
  absl::Status OnLatestReport(LatestPartition* partition, const FrameHeader& header, Bytes stamp);
  void OnLatestSync(LatestPartition* partition, const FrameHeader& header);
  absl::Status OnCopy(LatestPartition* partition, const FrameHeader& header, Bytes copy,
                      std::shared_ptr<Arena> own);

  Shard* const shard_;
  Link* const link_;
  const Traits* const traits_;  // of its transport
  const absl::Time since_;
  bool is_stranger_ = true;
  std::optional<auth::LinkTerms> terms_;  // from the HELLO on: what has to be proved
  ShardJob* job_ = nullptr;
  NodeId node_;
  Generation generation_;
  absl::flat_hash_map<PartitionId, int> unsent_;  // results; the Dones in the outbox count them
  Outbox outbox_;

  auth::Secret proof_{};  // this server's, lent to its HELLO

  // What is being received: one frame or several, in their order.
  std::array<std::byte, auth::kOpeningBytes> handshake_room_;
  std::deque<Placed> placed_;
  std::shared_ptr<Arena> scratch_;  // for contributions whose turn it is
  size_t scratch_used_ = 0;
  std::vector<std::shared_ptr<Arena>> spare_;  // for more of them
};

}  // namespace addend
