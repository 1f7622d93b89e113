// TCP: non-blocking sockets, vectored writes, payloads read straight to their destination.
#pragma once

#include <memory>
#include <vector>

#include "lib/shard/event_loop.h"
#include "lib/transport/machine.h"
#include "lib/transport/transport.h"

namespace addend {

struct TcpOptions {
  // Bytes the kernel may hold unsent per socket. Small, so that urgent frames can overtake the
  // frames that are queued here.
  int unsent_bytes_max = 128 * 1024;
  // Time for a connected peer to send its first header.
  absl::Duration hello_timeout = absl::Seconds(10);
};

// Makes the transport of a shard. `loop` must outlive it; made and destroyed on any thread while
// the loop is not running tasks that use it, used on the loop's thread.
class TcpTransport;
std::shared_ptr<Transport> MakeTcpTransport(EventLoop* loop, TcpOptions options = {});

// A listening port for all shards of a server: reads the wanted shard from the first frame (HELLO,
// header.partition) and hands the socket to that shard, whose transport is of MakeTcpTransport.
// INVALID_ARGUMENT as Machine::OpenPort().
absl::StatusOr<std::unique_ptr<DataPort>> OpenTcpPort(const Address& bind,
                                                      std::vector<ShardEnd> shards,
                                                      TcpOptions options = {});

}  // namespace addend
