// The end of members and jobs: a server, a node or a job leaves or is lost, with all that depends
// on it. Acts during an event.
//
// A colocated server and its node are the same process: either takes the other along.
#pragma once

#include <string>
#include <string_view>

#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/leases.h"

namespace addend {

class Roster {
 public:
  // The parts outlive the event.
  Roster(Fleet* fleet, Jobs* jobs, Leases* leases, Changes* changes)
      : fleet_(*fleet), jobs_(*jobs), leases_(*leases), changes_(*changes) {}

  // `kind`: event_kind::kLeft or kLost. `why`: a sentence for the log.
  void RemoveServer(ServerId id, std::string_view kind, const std::string& why);
  // `lost`: the node was lost; else it has left.
  void RemoveNode(Job* job, NodeId rank, const std::string& why, bool lost);
  // The node's trainers take no part any more: the generation fails, or goes on without them.
  void LoseNode(Job* job, NodeId rank, const std::string& why);
  // A node cannot reach a CPU server: its job moves away from the server at once. For other jobs
  // the server is lost with its own connection, or at the end of its lease: a node may have a bad
  // route, or lie.
  void AccuseServer(Job* job, Server* server, const Node& reporter, const std::string& reason);
  // A node cannot reach a colocated server, which is judged with its node.
  void AccuseNode(Job* job, const Server& server, const Node& reporter, const std::string& reason);
  // The node reaches the server again. Matters for a colocated server only: a job that has moved
  // away from a CPU server avoids it for a while all the same.
  void Withdraw(Job* job, const Server& server, NodeId reporter);

  // After a restart: the servers of stored reservations that were lost before all of the other
  // servers had answered.
  void LoseForgotten();
  // Ends the leases that are over, the nodes and servers that are accused and gone, and jobs that
  // have been empty for long.
  void EndLeases();

 private:
  JobScope ScopeOf(Job& job) { return {job, fleet_, changes_, jobs_.size()}; }
  // The job's node whose process the server is part of. Null: it takes no part.
  static Node* NodeOf(Job* job, const Server& server);
  void LoseNodeOf(Job* job, const Server& server, const std::string& why);
  void RemoveJob(Job* job);
  void EndExpired();
  void JudgeNodes();
  void JudgeServers();

  Fleet& fleet_;
  Jobs& jobs_;
  Leases& leases_;
  Changes& changes_;
};

}  // namespace addend
