// TCP: non-blocking sockets, vectored writes, payloads read straight to where they belong.
#pragma once

#include <memory>
#include <vector>

#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend {

struct TcpOptions {
  // Bytes the kernel may hold unsent per socket. Small, so that what is urgent can overtake what is
  // queued here.
  int unsent_bytes_max = 128 * 1024;
  // A connected peer has to have sent its first header by then.
  absl::Duration hello_timeout = absl::Seconds(10);
};

// The transport of one shard. `loop` must outlive it; made and destroyed on any thread while the
// loop is not running tasks that use it, used on the loop's thread.
class TcpTransport;
std::shared_ptr<Transport> MakeTcpTransport(EventLoop* loop, TcpOptions options = {});

// One listening port for all shards of a server: reads which shard the first frame (HELLO,
// header.partition) asks for and hands the socket to it. Every transport's accept function runs on
// its own loop.
class TcpPort {
 public:
  struct ShardEnd {
    EventLoop* loop;
    std::shared_ptr<Transport> transport;  // made by MakeTcpTransport
    Transport::AcceptFn accept;
  };
  // INVALID_ARGUMENT when the address cannot be bound: "cannot listen on H:P for data: ...".
  static absl::StatusOr<std::unique_ptr<TcpPort>> Open(const Address& bind,
                                                       std::vector<ShardEnd> shards,
                                                       TcpOptions options = {});
  virtual ~TcpPort() = default;  // stops accepting; accepted links stay
  virtual uint16_t port() const = 0;
};

}  // namespace addend
