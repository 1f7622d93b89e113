// What a partition waits for, for people. Pure.
#pragma once

#include "absl/time/time.h"
#include "lib/summation/job_state.h"
#include "lib/summation/partition.h"
#include "lib/summation/specs.h"

namespace addend {

// The open round, the reports of the nodes or the newest result are not complete.
bool IsWaiting(const Partition& partition);
// A round that is open, without its state and its nodes. `spec`: of the partition.
OpenRoundInfo InfoOf(const JobState& job, const PartitionSpec& spec, const OpenRound& round,
                     absl::Time now);
// Of a partition of the job that waits.
OpenRoundInfo DescribeRound(const JobState& job, const Partition& partition, absl::Time now);

}  // namespace addend
