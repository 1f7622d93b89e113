// `addendctl doctor`: what is wrong with this machine and with the cluster, and what to do.
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
  absl::Duration timeout;     // of a call to it
  std::string socket;         // of an agent here; empty: none to try
  uint64_t memory_bytes = 0;  // that this container may use; 0: what its cgroup says
  uint64_t model_bytes = 0;   // of all tensors; 0: not known
  uint32_t local_size = 0;    // ranks on a node; 0: one
  std::string transport;      // auto, tcp or rdma
  uint64_t probe_bytes = 0;   // to fetch from every member; 0: none
};

struct Diagnosis {
  std::vector<Finding> checks;
  absl::Status scheduler;  // why it does not answer, for people
};

// INVALID_ARGUMENT: a flag.
absl::StatusOr<Diagnosis> RunDoctor(const DoctorQuestion& question);

}  // namespace addend
