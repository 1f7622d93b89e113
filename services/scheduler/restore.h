// The start of a scheduler on the records of an earlier scheduler. Pure.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/leases.h"
#include "services/scheduler/store/store.h"

namespace addend {

// Fills the empty `fleet` and `jobs`. DATA_LOSS names a record that cannot be read or does not fit
// the others; then they are to be discarded.
absl::Status RestoreRecords(absl::Time now, const Leases& leases,
                            std::span<const StoreEntry> entries, Fleet* fleet, Jobs* jobs);

}  // namespace addend
