// The numbers of nodes that do not know their own (--node-rank=auto): when all nodes of a job have
// come, neighbours get numbers next to each other. Not stored: a node keeps its number while its
// agent lives, and a number that is free goes to the next agent that asks. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/job.h"
#include "services/scheduler/network_map.h"

namespace addend {

class Numbering {
 public:
  // An agent asks, again and again. The request was checked; `job` is that of the request, with the
  // same secret, or null if it does not exist. FAILED_PRECONDITION: the job has no number for it.
  absl::StatusOr<v1::NumberNodeResponse> Ask(absl::Time now, const v1::NumberNodeRequest& request,
                                             const Job* job, NetworkMap* map);

 private:
  struct Candidate {
    std::string control_address;
    std::string hostname;
    absl::Time asked;
    bool numbered = false;
    uint32_t rank = 0;
  };
  // The agents of a job that ask.
  struct Asking {
    std::map<uint64_t, Candidate> candidates;  // by incarnation
    absl::Time complete_since = absl::InfiniteFuture();
    absl::Time asked;
  };
  using Key = std::pair<std::string, std::string>;  // job, digest of the proof

  void ForgetSilent(absl::Time now, const Job* job, Asking* asking) const;
  void DropOldJobs(absl::Time now);
  // The agents without a number; the numbers that were given, of which the job has no node.
  static size_t Waiting(const Asking& asking);
  static size_t Unused(const Job* job, const Asking& asking);
  static std::vector<uint32_t> FreeRanks(const Job* job, const Asking& asking, uint32_t nodes);
  static bool Measured(const Asking& asking, const NetworkMap& map);
  static void NumberAll(const NetworkMap& map, const std::vector<uint32_t>& ranks, Asking* asking);

  std::map<Key, Asking> jobs_;
};

}  // namespace addend
