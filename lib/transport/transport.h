// The data path's one interface. A transport belongs to one shard: every method is called, and
// every callback runs, on that shard's EventLoop thread. Nothing blocks. tests/conformance proves
// the contract for every implementation.
//
//   Transport  makes links: Listen() for those that come, Connect() for those that go
//   Link       one ordered, reliable conversation with one peer; owned by its transport
//   Sink       the owner's end of a link: where payloads land and what happens then
//
// Contract
//  1. Every Send runs its Done exactly once, never from inside Send; in the order of sending,
//  unless traits().by_reference, where the receiver decides when it lets go of a payload.
//  2. Frames arrive complete, once, in the order of sending.
//  3. OnClosed is the last call a sink receives, and comes exactly once for every link that was
//  handed out; the Link
//     is gone when it returns. It is never called from inside a method of the link.
//  4. When a link closes, every pending Done runs with the reason before OnClosed does. From
//  Close() on the peer writes nothing more to this process's memory.
//  5. A peer that dies shows as OnClosed(UNAVAILABLE). Malformed bytes close the link with
//  DATA_LOSS, INVALID_ARGUMENT
//     or FAILED_PRECONDITION, and touch no other link. GOAWAY frames are the transport's own: sinks
//     never see one.
//  6. Links that copy take turns on the thread by groups (Link::Share): what one group sends and
//  receives delays another group's by a bounded amount in every turn, whatever it does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/wire/frame.h"

namespace addend {

// Fixed facts of a transport. Two transports of the same name and reach can connect.
struct Traits {
  std::string name;           // "inproc", "tcp", "rdma"
  std::string reach;          // inproc: the process; tcp: "ip"; rdma: "fabric"
  bool by_reference = false;  // payloads are pointers into the sender's memory: no copy, and no
                              // limit on what is in flight
  uint32_t in_flight_max =
      0;  // Sends without Done; a link with more is closed with RESOURCE_EXHAUSTED
  // What has to be in flight through a link for its full speed; 0: what SendLimits say.
  size_t window_bytes = 0;
  // Payloads of so many bytes and more are read by devices alone: they may lie in a DeviceRange.
  // 0: none may.
  size_t device_payload_min = 0;
};

// Counted by the transports, read by anyone.
struct TransportStats {
  std::atomic<uint64_t> bytes_sent{0};  // on the wire: headers and payloads; inproc: none
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> frames_sent{0};
  std::atomic<uint64_t> frames_received{0};
  std::atomic<uint64_t> local_bytes{0};      // payloads passed by pointer
  std::atomic<uint64_t> links_malformed{0};  // closed because of what the peer sent
};

using Done = absl::AnyInvocable<void(absl::Status)>;

// A received payload. With by_reference the memory is the sender's until the Payload is destroyed
// (on any thread); else it is what Place() returned.
class Payload {
 public:
  Payload() = default;
  explicit Payload(Bytes bytes) : bytes_(bytes) {}
  Payload(Bytes bytes, absl::AnyInvocable<void()> release)
      : bytes_(bytes), release_(std::move(release)) {}
  Payload(Payload&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), release_(std::exchange(other.release_, nullptr)) {}
  Payload& operator=(Payload&& other) noexcept {
    if (this != &other) {
      Release();
      bytes_ = std::exchange(other.bytes_, {});
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~Payload() { Release(); }

  Bytes bytes() const { return bytes_; }
  bool by_reference() const { return release_ != nullptr; }

 private:
  void Release() {
    if (release_) std::exchange(release_, nullptr)();
  }
  Bytes bytes_;
  absl::AnyInvocable<void()> release_;
};

// Implemented by the owner of a link; must outlive it.
class Sink {
 public:
  virtual ~Sink() = default;
  // The payload of this frame is about to be copied in, or written by the peer. Returns exactly
  // payload_bytes of memory, valid until OnFrame or OnClosed; or an empty span to drop it: then
  // OnFrame comes with an empty payload. An error closes the link. Several frames may be under way:
  // then Place() is called for each before the first OnFrame, in the order of these, all about
  // different partitions. Not called by by_reference transports, nor for frames without payload.
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  // An error closes the link with it.
  virtual absl::Status OnFrame(const FrameHeader& header, Payload payload) = 0;
  virtual void OnClosed(absl::Status why) = 0;
};

// Of one link. Each key is for one direction.
struct LinkKeys {
  std::array<std::byte, 32> send;
  std::array<std::byte, 32> receive;
};

class Link {
 public:
  virtual ~Link() = default;
  // header.payload_bytes is set from the payload, which is lent until Done.
  virtual void Send(const FrameHeader& header, Bytes payload, Done done) = 0;
  // Closes on purpose and tells the peer why (GOAWAY): its OnClosed gets the same code and message,
  // CANCELLED for OK. Idempotent. OnClosed follows.
  virtual void Close(absl::Status why) = 0;
  // For people: "10.0.0.7:7100".
  virtual std::string peer() const = 0;
  // How long there were bytes that the peer had not acknowledged: how long sending took. With
  // by_reference none is ever.
  virtual absl::Duration sending_time() const = 0;
  // Whatever is sent after this, and comes after the frame that the sink is taking, is encrypted
  // and cannot be changed on its way. Only in OnFrame. UNIMPLEMENTED: the transport cannot; in the
  // process there is nothing to encrypt.
  virtual absl::Status Encrypt(const LinkKeys& keys) = 0;
  // From now on about so much at most is on its way to the peer, unacknowledged. A hint.
  virtual void LimitInFlight(size_t bytes) = 0;
  // The links of one `group` (a number below 2^63) share one part of the thread's time, as large as
  // any other group's (fair_turns.h). Those that came and were not given to a group share a small
  // one. With by_reference nothing is shared.
  virtual void Share(uint64_t group) = 0;
};

struct Address {
  std::string host;
  uint16_t port = 0;
};

class Transport {
 public:
  // Called for every link that comes in; returns the sink to use, or nullptr to refuse.
  using AcceptFn = absl::AnyInvocable<Sink*(Link*)>;
  using ConnectFn = absl::AnyInvocable<void(absl::StatusOr<Link*>)>;

  // Closes all links with CANCELLED (their OnClosed runs in here). On the loop's thread, like
  // everything.
  virtual ~Transport() = default;
  virtual const Traits& traits() const = 0;
  virtual const TransportStats& stats() const = 0;
  // Port 0: the kernel's choice. Returns the bound address.
  virtual absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) = 0;
  // `shard`: which of the peer's shards is meant. ConnectFn runs exactly once, never from inside
  // Connect; on failure the sink receives nothing. DEADLINE_EXCEEDED after `timeout`.
  virtual void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
                       ConnectFn connected) = 0;
};

}  // namespace addend
