// The conversation beside a link's queue pairs, between the services over gRPC: at the start the
// addresses of both ends, at the end why the link closes. It breaks when the peer dies, which a
// queue pair that is silent would not notice.
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

// The ends of a link. Of who connects: a queue pair on each of its NICs, and the shard that is
// meant. Of the other: for each of these its own end, or none where its NICs cannot reach that one.
struct LinkEnds {
  uint32_t version = 0;
  uint32_t shard = 0;
  std::vector<std::optional<LaneAddress>> lanes;
};

// One word of the conversation.
struct Signal {
  using Ends = LinkEnds;
  std::optional<Ends> ends;             // the first word of each end
  std::optional<absl::Status> goodbye;  // the last one: why the link closes
};

class Signals {
 public:
  // Called on any thread, one word at a time and in order; an error, the last one, says that the
  // conversation has ended.
  using ListenFn = std::function<void(absl::StatusOr<Signal>)>;

  // Ends the conversation, after what was said. The listener may still be called.
  virtual ~Signals() = default;
  // Once; what was heard before is not lost.
  virtual void Listen(ListenFn listen) = 0;
  // Never blocks.
  virtual void Say(Signal signal) = 0;
};

// Begins a conversation with the server there. Never blocks; a failure is heard.
using DialFn = std::function<std::unique_ptr<Signals>(const Address& peer)>;

// Marks an error as one of the way that RDMA takes, not of the peer: another transport may get
// through.
absl::Status PathFailure(absl::Status why);
bool IsPathFailure(const absl::Status& why);

}  // namespace addend::rdma
