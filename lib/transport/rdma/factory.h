// RDMA over reliable connected queue pairs: payloads are written by the sender straight to where
// the receiver's sink wants them. docs/rdma.md.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/rdma/device.h"
#include "lib/transport/rdma/signals.h"
#include "lib/transport/transport.h"

namespace addend {

struct RdmaOptions {
  // How long a completion queue is polled on after its last completion, before the thread sleeps.
  absl::Duration spin = absl::Microseconds(50);
  // Links that are answered reach the memory of one owner alone. Off where all are of one owner, as
  // in an agent: memory that two kinds of links use would be registered twice.
  bool domain_per_owner = false;
};

// The transport of one shard: an RdmaTransport (rdma_transport.h) on all of `devices`, at least
// one. `loop` must outlive it. `dial` may be null where nothing is connected.
class RdmaTransport;
absl::StatusOr<std::shared_ptr<RdmaTransport>> MakeRdmaTransport(EventLoop* loop,
                                                                 const rdma::Devices& devices,
                                                                 rdma::DialFn dial,
                                                                 const RdmaOptions& options = {});

}  // namespace addend
