// Shared memory: links between processes of the same machine. Frames pass through a local socket,
// and large payloads lie where they are (segment.h) until the receiver copies them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/ids.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend {

// Where the processes of a machine meet. Processes that share it are on the same machine: the file
// descriptors that they pass to each other cannot leave it.
struct SharedMemoryOptions {
  bool enabled = true;
  // For sockets. Empty: the abstract sockets of the network namespace.
  std::string folder;
};

// Makes the transport of a shard, "shm". `loop` must outlive it. An Address is a name in its
// `host`; `shard` is part of the name.
std::shared_ptr<Transport> MakeSharedMemoryTransport(EventLoop* loop, std::string folder = "");

// The name of a shard's socket. It has the version of the conversation (record.h): where the peer
// speaks another version, nobody listens.
std::string SharedMemoryName(Incarnation server, uint32_t shard);

}  // namespace addend
