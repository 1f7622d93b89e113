// The machine as Addend uses it: threads, the network, the cluster's time. A simulation gives a
// machine of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend {

// A listening port of all shards of a server. Destroyed, it accepts no more; accepted links stay.
class DataPort {
 public:
  virtual ~DataPort() = default;
  virtual uint16_t port() const = 0;
};

struct ShardEnd {
  EventLoop* loop;
  std::shared_ptr<Transport> transport;  // of the same machine
  Transport::AcceptFn accept;            // runs on the loop
};

class Machine {
 public:
  virtual ~Machine() = default;
  // As EventLoop::Start().
  virtual absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) = 0;
  // The transport "tcp" of a shard. `loop` outlives it.
  virtual std::shared_ptr<Transport> MakeTransport(EventLoop* loop) = 0;
  // The transport "shm" of a shard, to other processes of the machine; null: there is none.
  virtual std::shared_ptr<Transport> MakeSharedMemory(EventLoop*) { return nullptr; }
  // INVALID_ARGUMENT when the address cannot be bound: "cannot listen on H:P for data: ...".
  virtual absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                             std::vector<ShardEnd> shards) = 0;
  // As addend::ClusterNow(). Any thread.
  virtual absl::Time ClusterNow() const = 0;
};

}  // namespace addend
