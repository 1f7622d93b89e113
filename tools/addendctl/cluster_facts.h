// What `addendctl doctor` learns of the cluster by asking and connecting. Nothing here judges.
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

// One of the schedulers' addresses.
struct SchedulerFacts {
  std::string address;
  absl::Status answer;           // of GetStatus
  bool refused = false;          // nobody takes connections there, but the machine is up
  double clock_ahead_s = 0;      // its clock against this machine's, when it answers
  double clock_uncertain_s = 0;  // half the time of the call
  v1::GetStatusResponse status;  // when it answers
};

// Something that may be connected to.
struct AddressFacts {
  std::string address;
  std::string error;  // empty: it takes connections
};

// A process of the cluster: a CPU server, or an agent with its colocated server.
struct MemberFacts {
  std::string name;  // "server 3 on cpu-0", "node 1 of job on gpu-1"
  std::string hostname;
  std::string control_address;
  std::vector<AddressFacts> data;  // of TCP
  double bandwidth_bps = 0;        // that it declares; 0: unknown
  double last_seen_s = 0;          // by the scheduler
  bool is_agent = false;

  std::string control_error = {};  // why it does not answer; empty: it does
  std::string version = {};        // empty: it does not say
  std::optional<double> measured_bps = {};
  std::string measure_error = {};
};

struct ClusterQuestion {
  PeerAddresses schedulers;
  absl::Duration timeout;    // of a call
  uint64_t probe_bytes = 0;  // to fetch from every member; 0: none
};

struct ClusterFacts {
  std::vector<SchedulerFacts> schedulers;
  std::vector<MemberFacts> members;
};

// The members that the scheduler knows, nothing asked yet.
std::vector<MemberFacts> MembersOf(const v1::GetStatusResponse& status);

ClusterFacts ReadCluster(const ClusterQuestion& question);

}  // namespace addend
