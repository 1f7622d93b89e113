// The conversation beside a link's queue pairs, between the services over gRPC: first the addresses
// of both ends, last the reason why the link closes. It breaks when the peer dies, which a silent
// queue pair would not show.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/transport/rdma/address.h"
#include "lib/transport/transport.h"

namespace addend::rdma {

// The ends of a link. In an offer: a queue pair on each NIC of the connecting end, and the shard to
// connect to. In an answer: for each of these the answering end's queue pair, or nullopt if none of
// its NICs can reach that NIC.
struct LinkEnds {
  uint32_t version = 0;
  uint32_t shard = 0;
  std::vector<std::optional<LaneAddress>> lanes;
};

// A message of the conversation.
struct Signal {
  using Ends = LinkEnds;
  std::optional<Ends> ends;             // the first signal of each end
  std::optional<absl::Status> goodbye;  // the last signal: why the link closes
};

class Signals {
 public:
  // Called on any thread, for a signal at a time and in order. An error is the last call: the
  // conversation has ended.
  using ListenFn = std::function<void(absl::StatusOr<Signal>)>;

  // Ends the conversation, after the signals that were sent. The listener may still be called.
  virtual ~Signals() = default;
  // Called once. Signals that came earlier are not lost.
  virtual void Listen(ListenFn listen) = 0;
  // Sends a signal. Never blocks.
  virtual void Say(Signal signal) = 0;
};

// Begins a conversation with the server at `peer`. Never blocks; the listener gets a failure.
using DialFn = std::function<std::unique_ptr<Signals>(const Address& peer)>;

// Marks an error as a failure of the RDMA path, not of the peer: another transport may get through.
absl::Status PathFailure(absl::Status why);
bool IsPathFailure(const absl::Status& why);

// Marks an error that the peer has sent, or that follows from its messages: before the peer has
// proved its identity, the error's code and exit status decide nothing.
absl::Status SaidByPeer(absl::Status why);
bool IsSaidByPeer(const absl::Status& why);

}  // namespace addend::rdma
