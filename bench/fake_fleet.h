// The control planes of thousands of members in this process: real calls of a real scheduler, over
// a connection of its own for each member's machine, and no data. A member does what an agent or a
// server does: it registers, watches, acknowledges, declares, and renews its lease.
//
// From Join() on each member sends a heartbeat every third of its lease. A step fails if a call is
// refused, a watch ends or the job fails. All waits end with a timeout, and name what is missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

class FakeFleet {
 public:
  struct Options {
    std::string scheduler;  // host:port
    uint32_t nodes = 1;     // of the job, each with a colocated server
    uint32_t cpu_servers = 0;
    std::vector<uint64_t> tensor_elements;  // float32
  };
  explicit FakeFleet(Options options);
  // Closes all connections.
  ~FakeFleet();

  // Every member registers and opens its watch, some at a time.
  absl::Status Join(absl::Duration patience);
  // Every node reports its trainers. Returns when each knows that the job is ready.
  absl::Status Begin(absl::Duration patience);
  // Every node declares all tensors. Returns when each knows where all partitions are summed.
  absl::Status Declare(absl::Duration patience);
  // The connection of a CPU server that has partitions breaks, and a node cannot reach it. Returns
  // when every node knows the new owners.
  absl::Status KillServer(absl::Duration patience);
  // Nothing but heartbeats for so long.
  absl::Status Rest(absl::Duration duration);

  // Bytes of all updates so far, as gRPC's messages.
  uint64_t node_update_bytes() const;
  uint64_t server_update_bytes() const;
  size_t members() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace addend
