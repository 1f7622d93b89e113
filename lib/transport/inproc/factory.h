// In-process links between shards: a frame is a posted task, a payload a pointer. This is how an
// agent talks to its colocated summation server.
#pragma once

#include <memory>

#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend {

// The names that can be connected to, of a process (or a test). Thread-safe. Must outlive its
// transports.
class InprocNetwork;
std::shared_ptr<InprocNetwork> MakeInprocNetwork();

// Makes the transport of a shard. Address.host is any name, unique in the network; port is ignored.
std::unique_ptr<Transport> MakeInprocTransport(EventLoop* loop,
                                               std::shared_ptr<InprocNetwork> network);

}  // namespace addend
