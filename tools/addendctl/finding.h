// One finding of `addendctl doctor`, and how findings are shown.
#pragma once

#include <string>
#include <vector>

namespace addend {

enum class Verdict {
  kOk,
  kWarning,        // works, but worse than it could, or not for long
  kProblem,        // does not work
  kNotApplicable,  // nothing to judge here
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;   // one sentence without a full stop
  std::string advice;  // what to do; empty: nothing
};

bool HasProblem(const std::vector<Finding>& checks);
// A line per check, its advice below it, and a summary.
std::string DoctorText(const std::vector<Finding>& checks);
// {"checks": [{"name", "verdict", "found", "advice"}], "problems", "warnings"}
std::string DoctorJson(const std::vector<Finding>& checks);

}  // namespace addend
