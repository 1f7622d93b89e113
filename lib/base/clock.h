// The clocks of timeouts, durations and tokens.
#pragma once

#include "absl/time/time.h"

namespace addend {

// The wall-clock time of the first call plus the time that has passed since by the kernel's steady
// clock: it never jumps when the machine's clock is set, and it is close to the wall-clock time as
// long as that clock is not set. For every timeout, deadline and duration. absl::Now() is for times
// that people read and for dates made by other machines (a token's end), and tests/tidy lists its
// uses. Any thread.
absl::Time SteadyNow();

// The scheduler's SteadyNow(), which dates tokens: the time in the scheduler's last answer plus the
// time that has passed since; SteadyNow() before the first answer. Setting the clock of a machine,
// of this machine or the scheduler's, ends no token before its time. Any thread.
absl::Time ClusterNow();
// Records the time in an answer of the scheduler (0: the answer has no time).
void KeepClusterTime(double now_unix_s);

}  // namespace addend
