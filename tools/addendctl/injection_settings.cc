#include "tools/addendctl/injection_settings.h"

#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "tools/addendctl/bounded_json.h"

namespace addend {
namespace {

using nlohmann::json;

// Of a model; as many as the chart's rule for the annotation addend.io/model-bytes allows.
constexpr uint64_t kMostModelBytes = 999'999'999'999'999;

absl::Status WrongSettings(const std::string& reason) {
  return absl::InvalidArgumentError(absl::StrFormat("the settings are wrong: %s", reason));
}

absl::StatusOr<std::string> TextOfSettings(const json& object, const char* key) {
  const json& value = JsonAt(object, key);
  if (!value.is_string()) return WrongSettings(absl::StrFormat("%s must be a text", key));
  return value.get<std::string>();
}

absl::StatusOr<std::vector<std::string>> TextsOfSettings(const json& object, const char* key) {
  const json& value = JsonAt(object, key);
  if (value.is_null()) return std::vector<std::string>();
  const bool texts =
      value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_string(); });
  if (!texts) return WrongSettings(absl::StrFormat("%s must be a list of texts", key));
  return value.get<std::vector<std::string>>();
}

absl::StatusOr<json> NamedObjects(const json& object, const char* key) {
  const json& value = JsonAt(object, key);
  const bool objects =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const json& one) {
        return one.is_object() && JsonAt(one, "name").is_string();
      });
  if (!objects)
    return WrongSettings(absl::StrFormat("%s must be a list of objects with a name", key));
  return value;
}

bool HasMark(const std::map<std::string, std::string>& marks,
             const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&marks](const std::string& name) { return marks.count(name) > 0; });
}

int64_t NumberIn(const PodMarks& pod, const std::string& annotation) {
  int64_t number = 0;
  const auto found = pod.annotations.find(annotation);
  if (found != pod.annotations.end()) static_cast<void>(absl::SimpleAtoi(found->second, &number));
  return number;
}

}  // namespace

bool PodRule::Value::Matches(const PodMarks& pod) const {
  const auto found = pod.annotations.find(annotation);
  return RE2::PartialMatch(found == pod.annotations.end() ? "" : found->second, *pattern);
}

bool PodRule::Marks::HasAny(const PodMarks& pod) const {
  return HasMark(pod.annotations, annotations) || HasMark(pod.labels, labels);
}

absl::StatusOr<PodRule::Value> PodRule::ParseValue(const json& value) {
  Value parsed;
  ADDEND_ASSIGN_OR_RETURN(parsed.annotation, TextOfSettings(value, "annotation"));
  ADDEND_ASSIGN_OR_RETURN(const std::string pattern, TextOfSettings(value, "pattern"));
  parsed.pattern = std::make_shared<const RE2>(pattern, RE2::Quiet);
  if (!parsed.pattern->ok()) {
    return WrongSettings(absl::StrFormat("%s is no regular expression of RE2", pattern));
  }
  return parsed;
}

absl::StatusOr<PodRule::Marks> PodRule::ParseMarks(const json& marks) {
  Marks parsed;
  ADDEND_ASSIGN_OR_RETURN(parsed.annotations, TextsOfSettings(marks, "annotations"));
  ADDEND_ASSIGN_OR_RETURN(parsed.labels, TextsOfSettings(marks, "labels"));
  return parsed;
}

absl::StatusOr<PodRule> PodRule::Parse(const json& rule) {
  PodRule parsed;
  ADDEND_ASSIGN_OR_RETURN(parsed.message_, TextOfSettings(rule, "message"));
  ADDEND_ASSIGN_OR_RETURN(parsed.has_any_, ParseMarks(JsonAt(rule, "hasAny")));
  if (!JsonAt(rule, "value").is_null()) {
    ADDEND_ASSIGN_OR_RETURN(parsed.value_, ParseValue(JsonAt(rule, "value")));
  }
  if (!JsonAt(rule, "below").is_null()) {
    ADDEND_ASSIGN_OR_RETURN(parsed.limit_, ParseValue(JsonAt(rule, "below")));
  }
  parsed.optional_ = JsonAt(rule, "optional") == true;
  if (parsed.limit_ && !parsed.value_) return WrongSettings("a rule has `below`, and no `value`");
  return parsed;
}

bool PodRule::IsMet(const PodMarks& pod) const {
  if (has_any_.HasAny(pod)) return true;
  if (!value_) return false;
  if (limit_) {
    // Values of another form are the subjects of other rules.
    if (!value_->Matches(pod) || !limit_->Matches(pod)) return true;
    return NumberIn(pod, value_->annotation) < NumberIn(pod, limit_->annotation);
  }
  return (optional_ && pod.annotations.count(value_->annotation) == 0) || value_->Matches(pod);
}

absl::StatusOr<InjectionSettings> ParseInjectionSettings(const std::string& text) {
  ADDEND_ASSIGN_OR_RETURN(const json file, ParseBoundedJson("the file of the settings", text));
  InjectionSettings settings;
  ADDEND_ASSIGN_OR_RETURN(const std::string failure_policy, TextOfSettings(file, "failurePolicy"));
  if (failure_policy != "Fail" && failure_policy != "Ignore") {
    return WrongSettings("failurePolicy must be Fail or Ignore");
  }
  settings.refuses = failure_policy == "Fail";
  if (!JsonAt(file, "rules").is_array()) return WrongSettings("rules must be a list");
  for (const json& rule : JsonAt(file, "rules")) {
    ADDEND_ASSIGN_OR_RETURN(PodRule parsed, PodRule::Parse(rule));
    settings.rules.push_back(std::move(parsed));
  }
  ADDEND_ASSIGN_OR_RETURN(settings.job_labels, TextsOfSettings(file, "jobLabels"));
  ADDEND_ASSIGN_OR_RETURN(const std::string model_bytes, TextOfSettings(file, "modelBytes"));
  if (!absl::SimpleAtoi(model_bytes, &settings.model_bytes) ||
      settings.model_bytes > kMostModelBytes) {
    return WrongSettings(absl::StrFormat("modelBytes must be a number up to %d", kMostModelBytes));
  }
  ADDEND_ASSIGN_OR_RETURN(settings.memory, TextOfSettings(file, "memory"));
  ADDEND_ASSIGN_OR_RETURN(settings.cpu, TextOfSettings(file, "cpu"));
  settings.sidecar = JsonAt(file, "sidecar");
  if (!JsonAt(settings.sidecar, "name").is_string() ||
      !JsonAt(JsonAt(settings.sidecar, "resources"), "limits").is_object()) {
    return WrongSettings("sidecar must be a container with a name and resources.limits");
  }
  ADDEND_ASSIGN_OR_RETURN(settings.volumes, NamedObjects(file, "volumes"));
  ADDEND_ASSIGN_OR_RETURN(settings.pull_secrets, NamedObjects(file, "imagePullSecrets"));
  ADDEND_ASSIGN_OR_RETURN(settings.claims, NamedObjects(file, "resourceClaims"));
  return settings;
}

}  // namespace addend
