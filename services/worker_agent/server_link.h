// The agent's end of the link to one shard of one summation server: handshake, contributions by
// priority, results straight into the trainers' result slots. Belongs to the agent's core thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/base/ids.h"
#include "lib/transport/outbox.h"
#include "lib/transport/transport.h"

namespace addend {

// Who this node is, in the frames it sends.
struct NodeIdentity {
  JobId job;
  Generation generation;
  NodeId node;
  Incarnation incarnation;
  auth::Token token;
  bool encrypt = false;  // what it sends to other machines, and what they send back

  auth::Claim claim() const {
    return {
        .job = job, .generation = generation, .node = node, .expires_unix_s = token.expires_unix_s};
  }
};

class ServerLink;

// What the agent makes of the frames that arrive.
class ServerEvents {
 public:
  virtual ~ServerEvents() = default;
  // Where the result belongs; empty: nobody waits for it (a repetition, of a round that is over, or
  // from a server that is not the owner any more).
  virtual MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) = 0;
  // The same of a stamp, which comes before the result that it is of.
  virtual MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) = 0;
  virtual void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) = 0;
  // `result` may be the room given, the same memory written by the colocated server, or elsewhere.
  virtual void OnResult(const ServerLink* link, const FrameHeader& header, Bytes result) = 0;
  // The owner wants a contribution again, or a result that this node holds.
  virtual void OnSendAgain(const ServerLink* link, const FrameHeader& header) = 0;
  // The owner has handed the partition over.
  virtual void OnMoved(const ServerLink* link, const FrameHeader& header) = 0;
  // The new owner of a partition knows where it stands.
  virtual void OnRecovered(const ServerLink* link, const FrameHeader& header) = 0;
  // The round will have no result, on no node.
  virtual void OnAborted(const ServerLink* link, const FrameHeader& header) = 0;
  // The server has admitted this node.
  virtual void OnLinkOpen(ServerLink* link, Incarnation server) = 0;
  // The link could not be made, or is lost. Nothing comes any more until Connect() is called again.
  virtual void OnLinkLost(ServerLink* link, const absl::Status& why) = 0;
};

class ServerLink final : public Sink {
 public:
  // All pointers outlive the link. `where` is for people: "summation server 2 at 10.0.0.7:7171".
  ServerLink(const NodeIdentity* identity, ServerEvents* events, Convoy* convoy, ServerId server,
             std::string where, uint32_t shard)
      : identity_(identity),
        events_(events),
        server_(server),
        where_(std::move(where)),
        shard_(shard),
        outbox_(convoy, [this](bool waiting) { SetWaiting(waiting); }) {}

  // Again after OnLinkLost, perhaps another way: what was queued then is forgotten. `transport`
  // outlives the link. `reason`: why it is this one, for people.
  void Connect(Transport* transport, const Address& address, std::string reason,
               absl::Duration timeout);
  // `payload` is lent until the round has its result. `place`, `handed_at`: as in Outbox::Push.
  void Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place = 0,
            int64_t* handed_at = nullptr);
  // The generation is over, or the server has been declared dead: no more events and nothing is
  // sent any more; the link may be destroyed once closed() is true.
  void Close(const absl::Status& why);
  bool closed() const { return closed_; }
  bool open() const { return open_; }
  // Close() was called: it is not to be connected any more.
  bool given_up() const { return leaving_; }
  bool was_open() const { return times_open_ > 0; }
  // It was open before the present connection.
  bool reopened() const { return times_open_ > 1; }
  // Attempts to connect since it was last open.
  int open_attempts() const { return attempts_; }
  // The partition's result has come, or is not expected from this server any more.
  void Arrived(PartitionId partition);
  // How long the server was at work for this node: contributions were on their way to it, or it had
  // all of them and their results were awaited. And how often it began.
  absl::Duration served() const;
  uint64_t services() const { return services_; }
  ServerId server() const { return server_; }
  const std::string& where() const { return where_; }
  uint32_t shard() const { return shard_; }
  size_t queued() const { return outbox_.queued(); }
  size_t credit_bytes() const { return open_ ? outbox_.credit_bytes() : 0; }
  // What is on its way to the server, about, at most.
  void LimitInFlight(size_t bytes);
  // That it uses, or used last.
  const Transport& transport() const { return *transport_; }
  const std::string& reason() const { return reason_; }
  // A payload of so many bytes may lie where only devices can read it.
  bool TakesFromDevice(size_t bytes) const {
    const size_t least = open_ ? transport_->traits().device_payload_min : 0;
    return least != 0 && bytes >= least;
  }
  // It was lost because of the way it took: the server may be reached another way.
  bool path_failed() const { return path_failed_; }
  // A result for this partition is on its way into the room that was given for it.
  bool IsReceiving(PartitionId partition) const { return placed_.contains(partition); }
  // Closes this connection: nothing of it arrives any more. OnLinkLost follows.
  void Reset(const absl::Status& why);

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override;
  void OnClosed(absl::Status why) override;

 private:
  void SayHello();
  absl::Status Answer(const FrameHeader& challenge, Bytes nonce);
  absl::Status OnWelcome(const FrameHeader& header, Bytes proof);
  void Await(PartitionId partition);
  void SetWaiting(bool waiting);
  void CountSumming();
  void Lose(const absl::Status& why);

  const NodeIdentity* const identity_;
  ServerEvents* const events_;
  const ServerId server_;
  const std::string where_;
  const uint32_t shard_;
  Transport* transport_ = nullptr;
  std::string reason_;
  bool path_failed_ = false;
  absl::flat_hash_set<PartitionId> placed_;  // rooms that results are on their way into
  Link* link_ = nullptr;
  size_t in_flight_bytes_ = SendLimits::kUnlimited;
  // Of the handshake under way. What is sent is lent to the link.
  auth::Token token_;
  auth::LinkTerms terms_;
  std::array<std::byte, auth::kOpeningBytes> opening_;
  auth::Secret proof_;
  auth::Secret heard_;    // room for what the server sends
  bool open_ = false;     // the server has admitted this node
  bool leaving_ = false;  // Close() was called
  bool closed_ = false;   // there is no connection, and none is being made
  bool connecting_ = false;
  int times_open_ = 0;
  absl::flat_hash_set<PartitionId> awaited_;  // pushed, without a result so far
  bool waiting_ = false;                      // some of these wait here
  absl::Time summing_since_ = absl::InfiniteFuture();
  absl::Duration summing_;
  absl::Duration sending_;  // by former connections
  uint64_t services_ = 0;
  int attempts_ = 0;
  Outbox outbox_;  // calls this link until it is destroyed, so it goes first
};

}  // namespace addend
