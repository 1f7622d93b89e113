// The pods of a training job in Kubernetes' own words: a Job, a JobSet or a PyTorchJob. The
// functions may throw yaml-cpp's exceptions (see AnswerInject).
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// Pods of one template.
struct TrainingPods {
  YAML::Node spec;        // the template's; nodes refer to the document, which changes with them
  std::string node_rank;  // what follows `name:` in the agent's variable ADDEND_NODE_RANK, as YAML
  std::vector<std::string> variables;  // further ones of the agent, as YAML; before the others
};

struct Workload {
  std::string kind;
  std::string name;  // of the object; empty: Kubernetes makes one up
  uint32_t num_nodes = 0;
  uint32_t local_size = 0;  // ranks on every node that the object itself names; 0: it does not
  std::vector<TrainingPods> pods;
};

// Makes an error of what is wrong with this node.
using Refuse = std::function<absl::Status(const YAML::Node&, const std::string&)>;

// Whether ReadWorkload knows this kind of object.
bool IsWorkload(const YAML::Node& document);
// `replicated_job`: which one of a JobSet trains; empty: the first.
absl::StatusOr<Workload> ReadWorkload(const YAML::Node& document, const std::string& replicated_job,
                                      const Refuse& refuse);

// GPUs that the containers of a pod ask for: those of the container that asks for most.
uint32_t GpusOf(const YAML::Node& pod_spec);

}  // namespace addend
