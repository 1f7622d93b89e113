// `addendctl trace`: the bottleneck of a job's last rounds, and the timeline of every partition in
// them, on all nodes and servers, on a common clock.
#pragma once

#include <string>

#include "tools/addendctl/bottleneck.h"
#include "tools/addendctl/trace_data.h"

namespace addend {

// A readable summary: the sentence that names the bottleneck, the stages of a partition, the
// compared places, and the error of the clocks. Pure.
std::string SummaryText(const JobTrace& trace, const Bottleneck& bottleneck);
// The same as JSON: {"job", "steps", "step_s", "bytes", "t_opt_s", "parts", "bottleneck" (null:
// none), "sentence", "suspects", "clock_error_s", "did_not_answer"}. Pure.
std::string SummaryJson(const JobTrace& trace, const Bottleneck& bottleneck);

}  // namespace addend
