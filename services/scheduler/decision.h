// The result of an event of the scheduler: records to store, updates to send, sentences to log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/lease.h"
#include "services/scheduler/store/store.h"

namespace addend {

struct ServerSend {
  WatchId watch = 0;
  std::shared_ptr<const v1::ServerUpdate> update;
};
struct NodeSend {
  WatchId watch = 0;
  std::shared_ptr<const v1::NodeUpdate> update;  // often the same for all nodes of a job
};
struct WatchEnd {
  WatchId watch = 0;
  absl::Status reason;
};

struct Decision {
  std::vector<StoreWrite> writes;
  std::vector<WatchEnd> ended;  // first: these watches get nothing more
  std::vector<ServerSend> to_servers;
  std::vector<NodeSend> to_nodes;
  std::vector<std::string> reasons;  // sentences for the log
  uint64_t planned = 0;              // tensors that were assigned to servers
  bool look_soon = false;            // Tick() is to be called within 20 ms, whatever it has said
};

// The answer to the caller of an event, and the event's decision. A refused call has a decision
// too, which holds: for example, a change of plan that had become possible.
template <typename Answer>
struct Outcome {
  Answer answer;
  Decision decision;
};

}  // namespace addend
