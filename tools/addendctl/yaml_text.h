// YAML files as users write them: split into documents with their lines, and written back.
// Functions that take a node may throw yaml-cpp's exceptions (see AnswerInject).
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

struct YamlDocument {
  std::string text;  // with its comments, without the "---"
  int line = 1;      // the line of the file where the text begins
};

std::vector<YamlDocument> SplitDocuments(const std::string& text);

// Returns the node as block-style YAML without `---`. Quoted scalars stay quoted, so "0" stays a
// string; comments are lost, and aliases are expanded. INVALID_ARGUMENT: the node uses YAML
// features that Kubernetes has no use for.
absl::StatusOr<std::string> WriteYaml(const YAML::Node& node);

}  // namespace addend
