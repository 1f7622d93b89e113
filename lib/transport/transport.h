// The single interface of the data path. A transport belongs to one shard: every method is called,
// and every callback runs, on that shard's EventLoop thread. Nothing blocks. tests/conformance
// proves the contract for every implementation.
//
//   Transport  makes links: Listen() for incoming links, Connect() for outgoing links
//   Link       an ordered, reliable conversation with a peer; owned by its transport
//   Sink       the owner's end of a link: places payloads and takes frames
//
// Contract
//  1. Every Send runs its Done exactly once, never from inside Send. Dones run in the order of
//     sending, unless traits().by_reference: there the receiver decides when it releases a payload.
//  2. Frames arrive complete, once, in the order of sending.
//  3. OnClosed is the last call that a sink receives, and comes exactly once for every link that
//     was handed out. The Link is gone when it returns. It is never called from inside a method of
//     the link.
//  4. When a link closes, every pending Done runs with the reason before OnClosed does. From
//     Close() on the peer writes nothing more to this process's memory.
//  5. The death of a peer causes OnClosed(UNAVAILABLE). Malformed bytes close the link with
//     DATA_LOSS, INVALID_ARGUMENT or FAILED_PRECONDITION, and touch no other link. GOAWAY frames
//     belong to the transport: a sink never sees them.
//  6. Links that copy take turns on the thread by groups (Link::Share): the traffic of a group
//     delays another group by a bounded amount in every turn.
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
#include "lib/base/version.h"
#include "lib/wire/frame.h"

namespace addend {

// Constant properties of a transport. Two transports of the same name and reach can connect.
struct Traits {
  std::string name;   // "inproc", "shm", "tcp", "rdma"
  std::string reach;  // inproc: the process; shm: "machine"; tcp: "ip"; rdma: "fabric"
  // Payloads are pointers into the sender's memory: no copy, and no limit on the bytes in flight.
  bool by_reference = false;
  // Sends without Done; a link with more is closed with RESOURCE_EXHAUSTED.
  uint32_t in_flight_max = 0;
  // Bytes in flight through a link that its full speed needs; 0: SendLimits decide.
  size_t window_bytes = 0;
  // Bytes cost no time on a link: encoding payloads gains nothing.
  bool same_machine = false;
  // Only devices read payloads of this size or more: they may lie in a DeviceRange. 0: payloads may
  // never lie there.
  size_t device_payload_min = 0;
};

// Written by the transports, read by any thread.
struct TransportStats {
  std::atomic<uint64_t> bytes_sent{0};  // on the wire: headers and payloads; inproc and shm: 0
  std::atomic<uint64_t> bytes_received{0};
  // The thread's time for moving those bytes to and from the kernel, encryption included. TCP
  // only.
  std::atomic<uint64_t> sending_ns{0};
  std::atomic<uint64_t> receiving_ns{0};
  std::atomic<uint64_t> frames_sent{0};
  std::atomic<uint64_t> frames_received{0};
  std::atomic<uint64_t> local_bytes{0};      // payloads sent within the machine
  std::atomic<uint64_t> links_malformed{0};  // closed because of bytes from the peer
};

using Done = absl::AnyInvocable<void(absl::Status)>;

// A received payload. With by_reference the memory is the sender's until the Payload is destroyed
// (on any thread); otherwise it is the memory that Place() returned.
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

// Implemented by the owner of a link. Must outlive the link.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns the memory for the payload of this frame, which is about to be copied in, or written by
  // the peer: exactly payload_bytes, valid until OnFrame or OnClosed. An empty span drops the
  // payload: then OnFrame comes with an empty payload. An error closes the link. Several frames,
  // all of different partitions, may be under way: then Place() is called for each before the first
  // OnFrame, in the same order as OnFrame. Not called by by_reference transports, nor for frames
  // without payload.
  virtual absl::StatusOr<MutableBytes> Place(const FrameHeader& header) = 0;
  // An error closes the link with this error.
  virtual absl::Status OnFrame(const FrameHeader& header, Payload payload) = 0;
  virtual void OnClosed(absl::Status why) = 0;
};

// The keys of a link, a key for each direction.
struct LinkKeys {
  std::array<std::byte, 32> send;
  std::array<std::byte, 32> receive;
};

class Link {
 public:
  virtual ~Link() = default;
  // `payload` is lent until Done runs. Sets header.payload_bytes from it.
  virtual void Send(const FrameHeader& header, Bytes payload, Done done) = 0;
  // Closes on purpose and tells the peer the reason (GOAWAY): the peer's OnClosed gets the same
  // code and message, CANCELLED for OK. Idempotent. OnClosed follows.
  virtual void Close(absl::Status why) = 0;
  // For messages: "10.0.0.7:7100".
  virtual std::string peer() const = 0;
  // The time during which the peer had bytes to acknowledge: how long sending took. Always zero
  // with by_reference.
  virtual absl::Duration sending_time() const = 0;
  // Encrypts and authenticates all bytes that are sent after this call, and all bytes that arrive
  // after the frame that the sink is taking. Only in OnFrame. UNIMPLEMENTED: the transport cannot
  // encrypt. OK in the process, where there is nothing to encrypt.
  virtual absl::Status Encrypt(const LinkKeys& keys) = 0;
  // Limits the unacknowledged bytes on their way to the peer to about `bytes` from now on. A hint.
  virtual void LimitInFlight(size_t bytes) = 0;
  // Moves the link to `group` (a number below 2^63). The links of a group share a part of the
  // thread's time, as large as any other group's (fair_turns.h). Incoming links without a group
  // share a small part. With by_reference nothing is shared.
  virtual void Share(uint64_t group) = 0;
};

struct Address {
  std::string host;
  uint16_t port = 0;
  // The RDMA protocol version to offer (docs/wire-format.md).
  uint32_t rdma_version = protocol::kRdma.newest;
};

class Transport {
 public:
  // Called for every incoming link; returns the sink to use, or nullptr to refuse the link.
  using AcceptFn = absl::AnyInvocable<Sink*(Link*)>;
  using ConnectFn = absl::AnyInvocable<void(absl::StatusOr<Link*>)>;

  // Closes all links with CANCELLED (their OnClosed runs in here). On the loop's thread, as every
  // method.
  virtual ~Transport() = default;
  virtual const Traits& traits() const = 0;
  virtual const TransportStats& stats() const = 0;
  // Port 0: the kernel chooses. Returns the bound address.
  virtual absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) = 0;
  // `shard`: the peer's shard to connect to. ConnectFn runs exactly once, never from inside
  // Connect; on failure the sink receives nothing. DEADLINE_EXCEEDED after `timeout`.
  virtual void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
                       ConnectFn connected) = 0;
};

}  // namespace addend
