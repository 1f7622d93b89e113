// The agent's end of the link to one shard of one summation server: handshake, contributions by
// priority, results straight into the trainers' result slots. Belongs to the agent's core thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
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
  std::string token;
};

class ServerLink;

// What the agent makes of the frames that arrive.
class ServerEvents {
 public:
  virtual ~ServerEvents() = default;
  // Where the result belongs; empty: nobody waits for it (a repetition, of a round that is over, or
  // from a server that is not the owner any more).
  virtual MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) = 0;
  // `result` may be the room given, the same memory written by the colocated server, or elsewhere.
  virtual void OnResult(const ServerLink* link, const FrameHeader& header, Bytes result) = 0;
  // The owner wants a contribution again, or a result that this node holds.
  virtual void OnSendAgain(const ServerLink* link, const FrameHeader& header) = 0;
  // The owner has handed the partition over.
  virtual void OnMoved(const ServerLink* link, const FrameHeader& header) = 0;
  // The new owner of a partition knows where it stands.
  virtual void OnRecovered(const ServerLink* link, const FrameHeader& header) = 0;
  // The server has admitted this node.
  virtual void OnLinkOpen(ServerLink* link, Incarnation server) = 0;
  // The link could not be made, or is lost. Nothing comes any more until Connect() is called again.
  virtual void OnLinkLost(ServerLink* link, const absl::Status& why) = 0;
};

class ServerLink final : public Sink {
 public:
  // All pointers outlive the link. `where` is for people: "summation server 2 at 10.0.0.7:7171".
  ServerLink(Transport* transport, const NodeIdentity* identity, ServerEvents* events,
             ServerId server, std::string where, uint32_t shard)
      : transport_(transport),
        identity_(identity),
        events_(events),
        server_(server),
        where_(std::move(where)),
        shard_(shard) {}

  // Again after OnLinkLost: what was queued then is forgotten.
  void Connect(const Address& address, absl::Duration timeout);
  // `payload` is lent until the round has its result.
  void Push(const FrameHeader& header, Bytes payload, Done done);
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
  // A result of this server is waited for, or (`arrived`) not any more.
  void Await() {
    if (awaited_++ == 0) awaited_since_ = absl::Now();
  }
  void Arrived() {
    if (--awaited_ > 0) return;
    waited_ += absl::Now() - awaited_since_;
    ++waits_;
  }
  // How long at least one was, until all had come, and how often.
  absl::Duration waited() const { return waited_; }
  uint64_t waits() const { return waits_; }
  ServerId server() const { return server_; }
  const std::string& where() const { return where_; }
  uint32_t shard() const { return shard_; }
  size_t queued() const { return outbox_.queued(); }
  std::string transport() const { return transport_->traits().name; }

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override;
  void OnPut(uint32_t immediate, uint32_t bytes) override;
  void OnClosed(absl::Status why) override;

 private:
  void SayHello();
  void Lose(const absl::Status& why);

  Transport* const transport_;
  const NodeIdentity* const identity_;
  ServerEvents* const events_;
  const ServerId server_;
  const std::string where_;
  const uint32_t shard_;
  Link* link_ = nullptr;
  Outbox outbox_;
  std::string token_;     // lent to the HELLO
  bool open_ = false;     // the server has admitted this node
  bool leaving_ = false;  // Close() was called
  bool closed_ = false;   // there is no connection, and none is being made
  bool connecting_ = false;
  int times_open_ = 0;
  int awaited_ = 0;  // results
  absl::Time awaited_since_;
  absl::Duration waited_;
  uint64_t waits_ = 0;
  int attempts_ = 0;
};

}  // namespace addend
