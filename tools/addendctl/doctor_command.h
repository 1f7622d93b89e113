// `addendctl doctor`: problems of this machine and of the cluster, and advice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"
#include "tools/addendctl/finding.h"

namespace addend {

struct DoctorQuestion {
  PeerAddresses scheduler;
  absl::Duration timeout;     // of a call to the scheduler
  std::string socket;         // of an agent on this machine; empty: no socket to try
  uint64_t memory_bytes = 0;  // memory limit of this container; 0: the cgroup's limit
  uint64_t model_bytes = 0;   // of all tensors; 0: unknown
  uint32_t local_size = 0;    // ranks on a node; 0: a single rank
  std::string transport;      // auto, tcp or rdma
  uint64_t probe_bytes = 0;   // bytes to fetch from every member; 0: no probe
};

struct Diagnosis {
  std::vector<Finding> checks;
  absl::Status scheduler;  // why the scheduler does not answer, readable
};

// INVALID_ARGUMENT: a flag has a bad value.
absl::StatusOr<Diagnosis> RunDoctor(const DoctorQuestion& question);

}  // namespace addend
