// The updates that members get, built from the state. Pure: reads only, but for what nodes know.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"

namespace addend {

// The moves of the tensor's plan, by partition.
std::map<uint32_t, v1::PartitionMove> MovesOf(const DeclaredTensor& tensor);
// Whether moves must not be announced yet: nodes are told nothing of a tensor whose new owners have
// not answered, and a node might say that it follows all moves when it does not know all of them.
bool MovesAreHeldBack(const Job& job);
// No running job needs the draining server any more.
bool IsDrained(const Server& server, const Jobs& jobs);

// To servers.
// Asks `server` to reserve `owned` of the tensor, in a job of so many nodes. The servers with which
// it exchanges sums are named; FillPeers() follows.
void AddReservation(const DeclaredTensor& tensor, ServerId server, const Owned& owned,
                    uint32_t nodes, v1::JobReservation* reservation);
// Where the named servers are.
void FillPeers(const Fleet& fleet, v1::JobReservation* reservation);
// Orders `owner` to hand over its moving partitions of the tensor, if the change has come so far.
void AddHandOvers(const Job& job, const DeclaredTensor& tensor, ServerId owner,
                  v1::JobReservation* reservation);
// The job's own fields.
void FillJob(const Job& job, v1::JobReservation* reservation);
// `awaited`: gets the reservations that the server has to answer.
v1::ServerUpdate FullServerUpdate(const Server& server, const Jobs& jobs,
                                  std::vector<std::pair<JobId, TensorId>>* awaited);

// To nodes.
// The tensor's plan as nodes may know it: with moves only when the owners-to-be are ready.
v1::TensorPlan PlanForNodes(const Job& job, const DeclaredTensor& tensor);
// The servers of the job's plan, and notes that some nodes know them.
void FillServers(Job* job, const Fleet& fleet, v1::NodeUpdate* update);
// The same in an update to all nodes: what has changed since they were told last, if all nodes take
// that.
void TellServers(Job* job, const Fleet& fleet, v1::NodeUpdate* update);
// The job's state, plan version, and the nodes that are gone.
void FillState(const Job& job, v1::NodeUpdate* update);
v1::NodeUpdate FullNodeUpdate(Job* job, const Fleet& fleet);

// Shared by the nodes that get the same.
using SharedUpdate = std::shared_ptr<const v1::NodeUpdate>;
// An update to the nodes of a job, in which each node finds its relays as the owners (relays.h).
class RelayViews {
 public:
  // `nodes`: of the job.
  RelayViews(uint32_t nodes, SharedUpdate update);
  // Shared by the nodes that contribute to the same relays.
  const SharedUpdate& For(NodeId node);

 private:
  const uint32_t nodes_;
  const SharedUpdate update_;
  SharedUpdate without_relays_;                          // `update_` itself: no relays
  std::map<std::vector<uint32_t>, SharedUpdate> views_;  // by the unit in the plan of each tensor
};
// The update as it concerns the node. The tensors and the fate of this generation concern no
// trainer of an idle node, but it may hold results that other nodes lack, so it is told of new
// owners. The trainers of a node that is gone learn that their generation is over.
SharedUpdate AsSeenBy(const Job& job, const Node& node, const SharedUpdate& update);

}  // namespace addend
