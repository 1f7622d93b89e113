// How `addendctl webhook` injects: the chart's file, made from the templates that also make the
// admission policies.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace addend {

// The annotations and labels of a pod.
struct PodMarks {
  std::map<std::string, std::string> annotations;
  std::map<std::string, std::string> labels;
};

// A condition that a pod must meet so that a sidecar can be made for it.
class PodRule {
 public:
  // `rule`: an element of the chart's addend.podRuleFacts. InvalidArgument says how it is wrong.
  static absl::StatusOr<PodRule> Parse(const nlohmann::json& rule);

  bool IsMet(const PodMarks& pod) const;
  // The sentence that refuses a pod.
  const std::string& message() const { return message_; }

 private:
  // A regular expression of RE2, as CEL's matches().
  struct Value {
    std::string annotation;
    std::shared_ptr<const re2::RE2> pattern;

    bool Matches(const PodMarks& pod) const;
  };
  struct Marks {
    std::vector<std::string> annotations;
    std::vector<std::string> labels;

    bool HasAny(const PodMarks& pod) const;
  };

  static absl::StatusOr<Value> ParseValue(const nlohmann::json& value);
  static absl::StatusOr<Marks> ParseMarks(const nlohmann::json& marks);

  std::string message_;
  Marks has_any_;               // of which the pod must have one, or is excused by one
  std::optional<Value> value_;  // that must match
  bool optional_ = false;       // a pod without the annotation meets the rule
  std::optional<Value> limit_;  // numbers: the value must be below; another rule is about its form
};

struct InjectionSettings {
  bool refuses = true;  // a pod for which no sidecar can be made; false: warns, and lets it start
  std::vector<PodRule> rules;
  std::vector<std::string> job_labels;  // that name a pod's job; the first that it has counts
  uint64_t model_bytes = 0;             // of a pod that says nothing
  std::string memory;                   // likewise; empty: what the model needs
  std::string cpu;                      // likewise
  nlohmann::json sidecar;               // values such as "pod:job" are those of the pod
  nlohmann::json volumes;
  nlohmann::json pull_secrets;
  nlohmann::json claims;
};

// INVALID_ARGUMENT names the part of the file that is wrong.
absl::StatusOr<InjectionSettings> ParseInjectionSettings(const std::string& text);

}  // namespace addend
