// The parts of a heartbeat that the scheduler uses: for a status, and incidents. Pure.
#pragma once

#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/job.h"

namespace addend {

// The part of a heartbeat that a status shows. The rest is used once, and may be a megabyte.
v1::HeartbeatRequest ShownOf(const v1::HeartbeatRequest& beat);
v1::HeartbeatRequest ShownOf(const v1::ColocatedBeat& beat);
// Notes the incidents that the heartbeat reports. `job`: of the member; null: it has no job.
void TakeIncidents(const v1::HeartbeatRequest& beat, Job* job, Changes* changes);

}  // namespace addend
