#include "tools/addendctl/finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

size_t Count(const std::vector<Finding>& checks, Verdict verdict) {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(),
                    [verdict](const Finding& finding) { return finding.verdict == verdict; }));
}

const char* Mark(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "WARNING";
    case Verdict::kProblem:
      return "PROBLEM";
    case Verdict::kNotApplicable:
      return "-";
  }
  return "";
}

const char* JsonName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
    case Verdict::kNotApplicable:
      return "not_applicable";
  }
  return "";
}

std::string Counted(size_t count, const char* what) {
  return absl::StrFormat("%d %s%s", count, what, count == 1 ? "" : "s");
}

}  // namespace

bool HasProblem(const std::vector<Finding>& checks) { return Count(checks, Verdict::kProblem) > 0; }

std::string DoctorText(const std::vector<Finding>& checks) {
  size_t width = 0;
  for (const Finding& finding : checks) width = std::max(width, finding.name.size());
  std::string text;
  for (const Finding& finding : checks) {
    text += absl::StrFormat("%-7s  %-*s  %s\n", Mark(finding.verdict), static_cast<int>(width),
                            finding.name, finding.found);
    if (!finding.advice.empty()) {
      text += absl::StrFormat("%*s-> %s\n", static_cast<int>(width) + 11, "", finding.advice);
    }
  }
  return text + absl::StrFormat("%s, %s\n", Counted(Count(checks, Verdict::kProblem), "problem"),
                                Counted(Count(checks, Verdict::kWarning), "warning"));
}

std::string DoctorJson(const std::vector<Finding>& checks) {
  nlohmann::ordered_json json = {{"checks", nlohmann::ordered_json::array()}};
  for (const Finding& finding : checks) {
    json["checks"].push_back({{"name", finding.name},
                              {"verdict", JsonName(finding.verdict)},
                              {"found", finding.found},
                              {"advice", finding.advice}});
  }
  json["problems"] = Count(checks, Verdict::kProblem);
  json["warnings"] = Count(checks, Verdict::kWarning);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace addend
