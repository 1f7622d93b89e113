// A job's trace in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing
// open. Pure.
#pragma once

#include <string>

#include "tools/addendctl/trace_data.h"

namespace addend {

// A process for each node and server; in a process, a group of rows for the ranks' work, for every
// link, and for sums. Arrows lead from contributions to the sum and from the sum to results. Times
// are in microseconds since the first event. Ends with a line feed.
std::string TraceEvents(const JobTrace& trace);

}  // namespace addend
