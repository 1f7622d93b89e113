// The registration of servers and nodes: admission, numbers, replacement of former starts. Acts
// during an event.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/leases.h"
#include "services/scheduler/roster.h"
#include "services/scheduler/tokens.h"

namespace addend {

class Registration {
 public:
  struct Rules {
    std::string servers_digest;  // of the proof that CPU servers must bring; empty: no proof
    std::function<std::string()> make_key;  // 32 new bytes that nobody can guess
  };

  // The parts outlive the event.
  Registration(const Rules& rules, const Tokens& tokens, Fleet* fleet, Jobs* jobs, Leases* leases,
               Changes* changes)
      : rules_(rules),
        tokens_(tokens),
        fleet_(*fleet),
        jobs_(*jobs),
        leases_(*leases),
        changes_(*changes),
        roster_(fleet, jobs, leases, changes) {}

  // The request has been checked for itself (CheckServerRequest, CheckServerOf; CheckNodeRequest).
  absl::StatusOr<v1::RegisterServerResponse> RegisterServer(
      const v1::RegisterServerRequest& request);
  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const v1::RegisterNodeRequest& request);

 private:
  JobScope ScopeOf(Job& job) { return {job, fleet_, changes_, jobs_.size()}; }
  bool IsSilent(const Lease& lease) const;
  absl::Status ReplaceServer(const v1::RegisterServerRequest& request);
  absl::Status ReplaceNode(Job* job, const v1::RegisterNodeRequest& request);
  void MakeRoomFor(const Server& server);
  void DropStrayServers(const Job& job);
  Job& CreateJob(const v1::RegisterNodeRequest& request);
  void JoinServer(Server server);
  Node& Join(Job* job, const v1::RegisterNodeRequest& request);
  void NoteUnfit(const Server& server);

  const Rules& rules_;
  const Tokens& tokens_;
  Fleet& fleet_;
  Jobs& jobs_;
  Leases& leases_;
  Changes& changes_;
  Roster roster_;
};

}  // namespace addend
