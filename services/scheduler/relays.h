// Relays: summation servers that sum the contributions of nodes near them, in place of the owner
// (lib/summation/relayed_partition.h), so that between groups of machines only sums travel. Chosen
// with a tensor's first plan; they last until something goes wrong, or its partitions move. Pure.
//
// The order of summation decides which nodes can have a relay together: a span of ranks whose sum
// the tree has (lib/base/sum_tree.h). A group of machines is cut into such spans. A group that
// begins in the middle of eight ranks gets the sum of those before it from their relay, and goes on
// from there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/ids.h"
#include "lib/base/sum_tree.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/planner.h"

namespace addend {

// The nodes that have relays together.
struct RelayUnit {
  SumSpan nodes;
  uint32_t group = 0;
  bool operator==(const RelayUnit&) const = default;
};
// `groups`: of each node rank. Without units there is a single group.
std::vector<RelayUnit> RelayUnitsOf(const std::vector<uint32_t>& groups);

// The servers that may relay for a job, by the places of its nodes.
struct RelayChoice {
  std::vector<RelayUnit> units;                            // empty: contributions go to the owners
  std::map<uint32_t, std::vector<const Server*>> servers;  // by group
  // The servers that may own partitions: where groups of eight ranks are cut, the owner has to be
  // among the last of their nodes, or outside, so that sums travel only once. Empty: all.
  std::vector<ServerId> owners;
};
RelayChoice ChooseRelays(const Job& job, const Fleet& fleet);
// Leaves the servers that may own partitions.
void KeepOwners(const RelayChoice& choice, PlannerJob* view);
// A job may have so many groups, and a relay for each of them and each of its partitions. The
// scheduler holds them all, and each event about a tensor looks through them.
inline constexpr size_t kMostRelayGroups = 1024;
inline constexpr uint64_t kMostRelayTurns = uint64_t{1} << 20;

// Gives each partition of a first plan a relay for each unit, so that the servers of a group have
// the same to do. A server relays a partition for one unit only. `loads`: of the job so far.
v1::RelayPlan PlanRelays(const RelayChoice& choice, const v1::TensorPlan& plan, uint32_t nodes,
                         const std::map<ServerId, JobLoad>& loads);

// The relay of a unit for a partition.
struct PlannedRelay {
  uint32_t unit = 0;
  SumSpan nodes;  // that contribute to it
  SumSpan sum;    // that it sends: with those before, which come from the relay `before`
  PartitionPlace relay;
  ServerId before;  // 0: nobody
  PartitionPlace to;
};
// False: no scheduler makes such relays for a tensor of so many partitions, in a job of so many
// nodes.
bool IsPossible(const v1::RelayPlan& relays, int partitions, uint32_t nodes);
// In ascending order. Empty: the partition has none, or is not relayed any more.
std::vector<PlannedRelay> RelaysOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t nodes);
// The relay of the unit. nullopt: its nodes contribute to the owner.
std::optional<PlannedRelay> RelayOf(const v1::TensorPlan& plan, uint32_t partition, uint32_t unit,
                                    uint32_t nodes);
uint32_t UnitOf(NodeId node, const v1::RelayPlan& plan);

uint64_t PayloadBytesOf(const v1::TensorPlan& plan, uint32_t partition);

// The server relays partitions of the job.
bool RelaysFor(ServerId server, const Job& job);

// Gives `seen`, a copy of the plan, the owners that the nodes of this unit see: their relays.
void ShowRelays(const v1::TensorPlan& plan, uint32_t unit, uint32_t nodes, v1::TensorPlan* seen);

}  // namespace addend
