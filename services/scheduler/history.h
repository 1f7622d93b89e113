// Counters and the last events since the process began. Not stored.
#pragma once

#include <cstdint>
#include <map>

#include "services/scheduler/event_log.h"

namespace addend {

// The cause of a plan.
enum class PlanReason : uint8_t {
  kDeclare,   // tensors were declared
  kJoin,      // servers joined
  kDrain,     // servers are being drained
  kLoss,      // servers were lost
  kPace,      // servers became slower or faster
  kEncoding,  // payloads take another number of bytes on the wire
};

struct MembersLost {
  uint64_t cpu_servers = 0;
  uint64_t colocated_servers = 0;
  uint64_t nodes = 0;
};

struct History {
  EventLog log;
  MembersLost lost;
  std::map<PlanReason, uint64_t> plan_changes;
};

}  // namespace addend
