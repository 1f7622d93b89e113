// Facts about the cluster that `addendctl doctor` gathers by calls and connections, without judging
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// A scheduler at one of the given addresses.
struct SchedulerFacts {
  std::string address;
  absl::Status answer;           // the status of GetStatus
  bool refused = false;          // the machine refuses the connection, so it is up
  double clock_ahead_s = 0;      // its clock minus this machine's, if it answers
  double clock_uncertain_s = 0;  // half the time of the call
  v1::GetStatusResponse status;  // set if it answers
};

// An address that should accept connections.
struct AddressFacts {
  std::string address;
  std::string error;  // empty: it accepts connections
};

// A process of the cluster: a CPU server, or an agent with its colocated server.
struct MemberFacts {
  std::string name;  // "server 3 on cpu-0", "node 1 of job on gpu-1"
  std::string hostname;
  std::string control_address;
  std::vector<AddressFacts> data;  // TCP data addresses
  double bandwidth_bps = 0;        // the declared bandwidth; 0: unknown
  double last_seen_s = 0;          // age of its last heartbeat at the scheduler
  bool is_agent = false;

  std::string control_error = {};  // why it does not answer; empty: it answers
  std::string version = {};        // empty: unknown
  std::optional<double> measured_bps = {};
  std::string measure_error = {};
};

struct ClusterQuestion {
  PeerAddresses schedulers;
  absl::Duration timeout;    // of a call
  uint64_t probe_bytes = 0;  // bytes to fetch from every member; 0: no probe
};

struct ClusterFacts {
  std::vector<SchedulerFacts> schedulers;
  std::vector<MemberFacts> members;
};

// Lists the members in the scheduler's status, before any call to them.
std::vector<MemberFacts> MembersOf(const v1::GetStatusResponse& status);

ClusterFacts ReadCluster(const ClusterQuestion& question);

}  // namespace addend
