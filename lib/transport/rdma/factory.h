// RDMA over reliable connected queue pairs: the sender writes payloads straight to the place that
// the receiver's sink has chosen. docs/rdma.md.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/signals.h"
#include "lib/transport/transport.h"

namespace addend {

struct RdmaOptions {
  // How long a completion queue is polled after its last completion, before the thread sleeps.
  absl::Duration spin = absl::Microseconds(50);
  // Restricts each answered link to the memory of its owner. Off where all memory has the same
  // owner, as in an agent: otherwise memory that two kinds of links use would be registered twice.
  bool domain_per_owner = false;
};

// Makes the transport of a shard: an RdmaTransport (rdma_transport.h) on all of `devices`, of which
// there must be at least 1. `loop` must outlive it. `dial` may be null if Connect() is not used.
class RdmaTransport;
absl::StatusOr<std::shared_ptr<RdmaTransport>> MakeRdmaTransport(EventLoop* loop,
                                                                 const rdma::Devices& devices,
                                                                 rdma::DialFn dial,
                                                                 const RdmaOptions& options = {});

}  // namespace addend
