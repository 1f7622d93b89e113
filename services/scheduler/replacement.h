// New owners for the partitions of a lost server. Acts on a job during an event (job_scope.h).
//
// The scheduler of spec/recovery.pml: the new owner is told first (RECOVERING_OWNER), and when it
// has answered, the nodes (RECOVERING_NODES). Between the two only the stored plan says so, which a
// restarted scheduler repeats.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/partition_ledger.h"
#include "services/scheduler/placement.h"

namespace addend {

class Replacement {
 public:
  explicit Replacement(const JobScope& scope)
      : job_(scope.job), scope_(scope), ledger_(scope), lifecycle_(scope), placement_(scope) {}

  // The server is lost with its partitions: other servers recover those that are published, and
  // tensors whose partitions were only being reserved are planned anew. `why`: for messages.
  void LoseServer(ServerId server, const std::string& why);
  // The server lives and sums for other jobs, but this job does without it for 10 minutes. The
  // server is told to forget the job. Nodes close their links to it before they report to the new
  // owners, so that it does no harm where it does not hear of that at once.
  void LeaveServer(Server* server, const std::string& why);
  // All owners stay, under a new plan version, and recover all partitions; moves are given up. A
  // colocated server sums in its node's memory, so the nodes are told only when every colocated
  // server of the job has dropped the partitions that the plan does not give it.
  // Relays end with it. `how`: for people.
  void RecoverAll(const std::string& how = "where the store has them");
  // Nodes contribute to the owners themselves from now on, until the generation ends: relays do not
  // follow losses of nodes and servers. All partitions are recovered. No effect without relays.
  void EndRelays(const std::string& why);

 private:
  // The partitions of a lost server, those with a move under way apart.
  struct Lost {
    struct Whole {
      std::vector<PlannedPartition> partitions;
      std::vector<DeclaredTensor*> tensors;  // of each
    };
    std::map<Participants, Whole> whole;
    size_t whole_count = 0;
    std::map<uint64_t, std::set<uint32_t>> moving;  // by agreement
    size_t moving_count = 0;
  };
  void GiveUpMovesTo(ServerId server);
  // No node knows the tensor's plan, whose servers have not all answered. A plan that nodes may
  // know counts as published from now on.
  bool IsUnknown(DeclaredTensor* tensor);
  absl::StatusOr<std::vector<PartitionPlace>> OwnersOf(std::span<const PlannedPartition> partitions,
                                                       const Participants& set) const;
  Lost PartitionsOf(ServerId lost, const std::vector<uint64_t>& agreements);
  void Recover(ServerId lost, const std::vector<uint64_t>& agreements, const std::string& why);
  void AskNewOwners(DeclaredTensor* tensor);
  size_t RecoverInPlace(DeclaredTensor* tensor);

  Job& job_;
  const JobScope scope_;
  PartitionLedger ledger_;
  Lifecycle lifecycle_;
  Placement placement_;
};

}  // namespace addend
