// The answers of servers to reservations. Acts during an event.
#pragma once

#include <cstdint>

#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"

namespace addend {

class Reservations {
 public:
  // The parts outlive the event.
  Reservations(Fleet* fleet, Jobs* jobs, Changes* changes)
      : fleet_(*fleet), jobs_(*jobs), changes_(*changes) {}

  // Ignores an answer to an update that a full update has superseded: the answer to that counts.
  void TakeAnswer(const v1::AckReservationRequest& answer, Server* server);

 private:
  void NoteFreeBytes(uint64_t free_bytes, Server* server);

  Fleet& fleet_;
  Jobs& jobs_;
  Changes& changes_;
};

}  // namespace addend
