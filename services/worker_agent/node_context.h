// The parts of the agent that outlive a generation, for the objects of a generation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/link/server_link.h"
#include "lib/shard/task_loop.h"
#include "lib/transport/convoy.h"
#include "lib/transport/transport.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/worker_agent/agent_counters.h"
#include "services/worker_agent/incidents.h"
#include "services/worker_agent/journal.h"
#include "services/worker_agent/node_options.h"
#include "services/worker_agent/pulse.h"
#include "services/worker_agent/result_slots.h"
#include "services/worker_agent/scheduler_reports.h"

namespace addend {

// The job as the scheduler describes it, or as this node's failure has left it.
struct JobProgress {
  v1::JobState state = v1::FORMING;
  std::string reason;  // for people: FORMING: the nodes that the job waits for; FAILED: the cause
};

// The nodes of the job, as the trainers hear of them.
struct NodeCounts {
  uint32_t taking_part = 0;  // in this generation
  uint32_t waiting = 0;      // for the next generation
};

// The transports of the core loop.
struct NodeTransports {
  Transport* tcp = nullptr;
  Transport* inproc = nullptr;  // to the colocated server
  Transport* shm = nullptr;     // to processes of this machine; null: not wanted
  Transport* rdma = nullptr;    // null without a NIC
};

// The servers of the plan, and the links to them that outlive a generation.
struct ServerDirectory {
  std::map<uint32_t, v1::ServerInfo> servers;  // by number
  ServerId colocated;                          // 0: this node has no server of its own
  // Links of former generations, until they are closed.
  std::vector<std::unique_ptr<ServerLink>> retired;
  void DropClosed() {
    std::erase_if(retired, [](const auto& link) { return link->closed(); });
  }
};

// All pointers outlive the generation.
struct NodeContext {
  const NodeOptions* options = nullptr;
  const NodeIdentity* identity = nullptr;
  absl::Duration lease;             // of this node at the scheduler
  TaskLoop* loop = nullptr;         // drops the tasks of a generation that has ended
  const TaskLoop* clock = nullptr;  // outlives the links of former generations
  SchedulerReports* reports = nullptr;
  NodeTransports transports;
  PayloadEncoder* encoder = nullptr;  // of payloads to servers elsewhere
  Convoy* convoy = nullptr;           // of all links that leave the node
  ServerDirectory* directory = nullptr;
  JobProgress* job = nullptr;
  AgentCounters* counters = nullptr;
  Incidents* incidents = nullptr;
  Journal* journal = nullptr;
  ResultSlots* slots = nullptr;
  Pulse* pulse = nullptr;
};

}  // namespace addend
