// The lease of a member: the time until which the scheduler takes it for alive.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace addend {

// A watch stream of a member, numbered by the caller from 1; 0: no stream.
using WatchId = uint64_t;

// A member is lost when it neither heartbeats nor calls for a whole lease, or has no watch stream
// for that long.
struct Lease {
  absl::Time last_seen;
  WatchId watch = 0;
  bool has_watched = false;
  bool restored = false;       // the member is known from the store
  absl::Time unwatched_since;  // meaningful while watch == 0

  // False for a member of a former scheduler that may have ended while there was no scheduler.
  bool Heard() const { return has_watched || !restored; }
  absl::Time Deadline(absl::Duration lease) const {
    const absl::Time silent = last_seen + lease;
    return watch != 0 ? silent : std::min(silent, unwatched_since + lease);
  }
};

}  // namespace addend
