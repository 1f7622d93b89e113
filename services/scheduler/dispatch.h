// Makes the Decision of an event of its Changes: everything is built from the state at the event's
// end.
#pragma once

#include "services/scheduler/changes.h"
#include "services/scheduler/decision.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/tokens.h"
#include "services/scheduler/updates.h"

namespace addend {

class Dispatch {
 public:
  // The parts outlive the event.
  Dispatch(const Tokens& tokens, Fleet* fleet, Jobs* jobs, Changes* changes)
      : tokens_(tokens),
        fleet_(*fleet),
        jobs_(*jobs),
        changes_(*changes),
        decision_(changes->TakeDecision()) {}

  // To be called once. Notes in the servers the reservations that they have to answer, and in the
  // nodes the tokens that they get.
  Decision Make();

 private:
  void SendToServers();
  void SendToNodes();
  void SendTo(const Job& job, Node* node, RelayViews* views);
  void KeepOptimum(Job* job) const;
  void WriteRecords();

  const Tokens& tokens_;
  Fleet& fleet_;
  Jobs& jobs_;
  Changes& changes_;
  Decision decision_;
};

}  // namespace addend
