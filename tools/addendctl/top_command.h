// `addendctl top`: the cluster, live.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/options/stop_signal.h"

namespace addend {

struct TopQuestion {
  std::string scheduler;
  std::string job;  // empty: all jobs
  absl::Duration interval;
  absl::Duration timeout;  // of a call
  bool once = false;       // a single view, after an interval
  bool json = false;       // a line per interval
};

// Prints a view per interval until SIGINT or SIGTERM, and continues while the scheduler does not
// answer. With `once` that is an error. `stop` was made before the first thread.
absl::Status RunTop(const TopQuestion& question, StopSignal* stop);

}  // namespace addend
