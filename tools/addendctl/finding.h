// A finding of `addendctl doctor`, and the output of findings.
#pragma once

#include <string>
#include <vector>

namespace addend {

enum class Verdict {
  kOk,
  kWarning,        // works, but worse than possible, or not for long
  kProblem,        // does not work
  kNotApplicable,  // nothing to check here
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;   // a sentence without a full stop
  std::string advice;  // the remedy; empty: no remedy is needed
};

bool HasProblem(const std::vector<Finding>& checks);
// A line per check, its advice below it, and a summary.
std::string DoctorText(const std::vector<Finding>& checks);
// {"checks": [{"name", "verdict", "found", "advice"}], "problems", "warnings"}
std::string DoctorJson(const std::vector<Finding>& checks);

}  // namespace addend
