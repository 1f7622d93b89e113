// YAML files as people write them: documents with their place in the file, and text again.
// yaml-cpp throws; so may everything here that takes a node (see AnswerInject).
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

struct YamlDocument {
  std::string text;  // with its comments, without the "---"
  int line = 1;      // of the file, where the text begins
};

std::vector<YamlDocument> SplitDocuments(const std::string& text);

// The node as block-style YAML, `---` not included. What was quoted stays quoted, so "0" stays a
// string; comments are lost, and aliases are written out. INVALID_ARGUMENT: it uses what Kubernetes
// has no use for.
absl::StatusOr<std::string> WriteYaml(const YAML::Node& node);

}  // namespace addend
