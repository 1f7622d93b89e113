// The servers that may sum for a job, and the job as the planner sees it. Pure: reads only.
#pragma once

#include <cstdint>
#include <vector>

#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/planner.h"

namespace addend {

// Whether the server may sum for the job: every node can speak and reach it, and a colocated server
// is of this job and has proved so.
bool MayUse(const Job& job, const Server& server);
// The colocated server of a node, null if the job may not use it or there is no such server. Found
// by job and rank and not by the id that the agent gave: after a restart of a scheduler without a
// store, agents still give the ids of the former scheduler.
const Server* ColocatedServer(const Job& job, NodeId node, const Fleet& fleet);
// All servers that may sum for the job: the colocated servers by rank, then the CPU servers by id.
std::vector<const Server*> EligibleServers(const Job& job, const Fleet& fleet);

// The partition size that was set, or that fits the slowest node's link.
PartitionSize PartitionSizeOf(const Job& job, const Fleet& fleet);

// Which servers a plan may give something new.
enum class Candidates : uint8_t {
  kHeard,  // all but CPU servers that a restarted scheduler has not heard and the job does not use
  kAll,
};

// The sets of ranks for which the job has planned tensors.
std::vector<Participants> SetsOf(const Job& job);
// The job as the planner of the tensors of `set` sees it: the nodes of these ranks, their colocated
// servers and the CPU servers, with the loads by these tensors. `jobs`: that share the machines of
// the CPU servers, this job included.
//
// A machine that serves several sets counts for each with the part of its bandwidth that is the
// set's part of the bytes that it carries for the job. `coming`: bytes of the set that are about to
// be planned. `candidates`: the CPU servers that are in the view.
PlannerJob ViewOf(const Job& job, const Fleet& fleet, size_t jobs, const Participants& set = {},
                  double coming = 0, Candidates candidates = Candidates::kHeard);

// The published partitions of a set of ranks, and the agreements on their tensors.
struct PublishedPartitions {
  std::vector<PlannedPartition> partitions;
  std::vector<uint64_t> agreements;  // by partition
};
PublishedPartitions PublishedPartitionsOf(const Job& job, const Participants& set);

}  // namespace addend
