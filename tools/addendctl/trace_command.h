// `addendctl trace`: what the last rounds of a job waited for, and every partition's way through
// them, on all nodes and servers on one clock.
#pragma once

#include <string>

#include "tools/addendctl/bottleneck.h"
#include "tools/addendctl/trace_data.h"

namespace addend {

// For people: the sentence that names the bottleneck, the parts of a partition's way, the places
// that were looked at, and how well the clocks are known. Pure.
std::string SummaryText(const JobTrace& trace, const Bottleneck& bottleneck);
// The same for programs: {"job", "steps", "step_s", "bytes", "t_opt_s", "parts", "bottleneck"
// (null: none), "sentence", "suspects", "clock_error_s", "did_not_answer"}. Pure.
std::string SummaryJson(const JobTrace& trace, const Bottleneck& bottleneck);

}  // namespace addend
