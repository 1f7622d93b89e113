// The agent's end of the link to a shard of a summation server: handshake, contributions by
// priority, results straight into the trainers' result slots. Belongs to the agent's core thread.
//
// Until the server has proved that it knows the job's key, its frames are unauthenticated: only the
// handshake's frames are taken, each in its turn, and any other frame closes the connection. Before
// OnLinkOpen, OnLinkLost is the only event.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/link/result_rooms.h"
#include "lib/link/server_work.h"
#include "lib/transport/outbox.h"
#include "lib/transport/transport.h"

namespace addend {

// This node's identity in the frames that it sends.
struct NodeIdentity {
  JobId job;
  Generation generation;
  NodeId node;
  Incarnation incarnation;
  auth::Token token;
  bool encrypt = false;  // links to other machines, both ways

  auth::Claim claim() const {
    return {
        .job = job, .generation = generation, .node = node, .expires_unix_s = token.expires_unix_s};
  }
};

class ServerLink;

// A way to a server that is tried first. Where nobody listens, it is as if it were not there.
struct Shortcut {
  Transport* transport = nullptr;  // null: no shortcut
  Address address = {};
};

// The events of links, and the frames that arrive.
class ServerEvents {
 public:
  virtual ~ServerEvents() = default;
  // The memory for the result; empty: no round waits for it (a repetition, a round that is over, or
  // a server that is not the owner any more).
  virtual MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) = 0;
  // The memory for a result's stamp, which arrives before the result.
  virtual MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) = 0;
  virtual void OnStamp(const ServerLink* link, const FrameHeader& header, Bytes stamp) = 0;
  // A raw `result` may be the room given, the same memory written by the colocated server, or
  // elsewhere; an encoded result is elsewhere. An error closes the link: the result is not
  // well-formed.
  virtual absl::Status OnResult(const ServerLink* link, const FrameHeader& header,
                                const EncodedBytes& result) = 0;
  // The owner asks for a contribution again, or for a result that this node holds.
  virtual void OnSendAgain(const ServerLink* link, const FrameHeader& header) = 0;
  // The owner has handed the partition over.
  virtual void OnMoved(const ServerLink* link, const FrameHeader& header) = 0;
  // The new owner of a partition knows its newest round.
  virtual void OnRecovered(const ServerLink* link, const FrameHeader& header) = 0;
  // The round will have no result, on any node.
  virtual void OnAborted(const ServerLink* link, const FrameHeader& header) = 0;
  // The server has admitted this node.
  virtual void OnLinkOpen(ServerLink* link, Incarnation server) = 0;
  // The link could not be made, or is lost. Nothing follows until Connect() is called again.
  virtual void OnLinkLost(ServerLink* link, const absl::Status& why) = 0;
};

class ServerLink final : public Sink {
 public:
  enum class State : uint8_t {
    kNew,             // Connect() was not called
    kConnecting,      // a connection is being made
    kAwaitChallenge,  // HELLO is sent
    kAwaitWelcome,    // PROOF is sent
    kOpen,            // the server has proved itself
    kLost,            // no connection, until Connect() is called again
    kClosing,         // Close() was called, and a connection is there, or being made
    kEnded            // Close() was called, and no connection is left
  };
  using Clock = ServerWork::Clock;

  // All pointers outlive the link. `where` is for people: "summation server 2 at 10.0.0.7:7171".
  ServerLink(const NodeIdentity* identity, ServerEvents* events, Convoy* convoy, ServerId server,
             std::string where, uint32_t shard, Clock clock = SteadyNow)
      : identity_(identity),
        events_(events),
        server_(server),
        where_(std::move(where)),
        shard_(shard),
        work_(std::move(clock)),
        outbox_(convoy, [this](bool queued) { work_.SetQueued(queued); }) {}

  // Of the frames, from the next HELLO on.
  void SetVersion(uint16_t version) { version_ = version; }
  // Again after OnLinkLost, perhaps through another transport: the frames queued before are
  // dropped. `transport` outlives the link. `reason`: of the choice of transport, for people.
  void Connect(Transport* transport, const Address& address, std::string reason,
               absl::Duration timeout, const Shortcut& shortcut = {});
  // `payload` is lent until the round has its result. `place`, `handed_at`, `encode`: as in
  // Outbox::Push.
  void Push(const FrameHeader& header, Bytes payload, Done done, uint64_t place = 0,
            int64_t* handed_at = nullptr, EncodeFn encode = nullptr);
  // The generation is over, or the server was declared dead: no event follows, and nothing is sent
  // any more. The link may be destroyed once closed() is true.
  void Close(const absl::Status& why);
  State state() const { return state_; }
  bool open() const { return state_ == State::kOpen; }
  // There is no connection, nor an attempt to connect.
  bool closed() const { return state_ == State::kLost || state_ == State::kEnded; }
  // Close() was called.
  bool given_up() const { return state_ == State::kClosing || state_ == State::kEnded; }
  // Of all connections so far.
  int times_open() const { return times_open_; }
  // An earlier connection, or attempt, has ended: the frames that were queued or on their way then
  // were dropped, and have to be sent again.
  bool has_forgotten() const { return times_lost_ > 0; }
  // Attempts to connect since the link was last open.
  int open_attempts() const { return attempts_; }
  // A process at the address has taken the last, or present, connection.
  bool met() const { return met_; }
  // The partition's result has come, or is not expected from this server any more.
  void Arrived(PartitionId partition) {
    work_.Arrived(partition);
    outbox_.Arrived(partition);
  }
  // How long the server was at work for this node, and how often it began to be.
  absl::Duration served() const { return work_.served(sending_time()); }
  uint64_t services() const { return work_.services(); }
  // The time that sending took since the last call.
  absl::Duration TakeSendingTime() { return work_.TakeSending(sending_time()); }
  ServerId server() const { return server_; }
  const std::string& where() const { return where_; }
  uint32_t shard() const { return shard_; }
  size_t queued() const { return outbox_.queued(); }
  size_t credit_bytes() const { return open() ? outbox_.credit_bytes() : 0; }
  // Limits the bytes on their way to the server to about `bytes`.
  void LimitInFlight(size_t bytes);
  // The transport in use, or last used.
  const Transport& transport() const { return *transport_; }
  const std::string& reason() const { return reason_; }
  // A payload of so many bytes may lie where only devices can read it.
  bool TakesFromDevice(size_t bytes) const {
    const size_t least = open() ? transport_->traits().device_payload_min : 0;
    return least != 0 && bytes >= least;
  }
  // The link was lost because of its transport: another transport may reach the server.
  bool path_failed() const { return path_failed_; }
  // A result for this partition is on its way into the room that was given for it.
  bool IsReceiving(PartitionId partition) const { return rooms_.IsReceiving(partition); }
  // Closes this connection: its frames do not arrive any more. OnLinkLost follows.
  void Reset(const absl::Status& why);

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override;
  void OnClosed(absl::Status why) override;

 private:
  void OnConnected(const absl::StatusOr<Link*>& link);
  void SayHello();
  // Whether a frame of this type may come now.
  absl::Status CheckExpected(const FrameHeader& header) const;
  absl::Status Answer(const FrameHeader& challenge, Bytes nonce);
  absl::Status OnWelcome(const FrameHeader& header, Bytes proof);
  // A frame of a link that is open.
  absl::Status OnServerFrame(const FrameHeader& header, Bytes payload);
  // Over the present connection.
  absl::Duration sending_time() const {
    return link_ == nullptr ? absl::ZeroDuration() : link_->sending_time();
  }
  void Lose(const absl::Status& why);

  const NodeIdentity* const identity_;
  ServerEvents* const events_;
  const ServerId server_;
  const std::string where_;
  const uint32_t shard_;
  State state_ = State::kNew;
  uint16_t version_ = kWireVersion;
  Transport* transport_ = nullptr;
  std::string reason_;
  bool path_failed_ = false;
  ResultRooms rooms_;
  Link* link_ = nullptr;
  size_t in_flight_bytes_ = SendLimits::kUnlimited;
  // Of the handshake under way: lent to the link while it sends them.
  struct {
    auth::Token token;
    auth::LinkTerms terms;
    std::array<std::byte, auth::kOpeningBytes> opening;
    auth::Secret proof;
    auth::Secret heard;  // room for the server's challenge and proof
  } handshake_;
  int times_open_ = 0;
  int times_lost_ = 0;
  int attempts_ = 0;
  bool met_ = false;  // the last attempt made a connection
  ServerWork work_;
  Outbox outbox_;  // calls this link until it is destroyed, so it goes first
};

}  // namespace addend
