// The pods of a training job in Kubernetes: a Job, a JobSet, a PyTorchJob, an MPIJob, a
// LeaderWorkerSet or a Pod. The functions may throw yaml-cpp's exceptions (see AnswerInject).
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// Pods of the same template.
struct TrainingPods {
  YAML::Node pod_template;  // its nodes refer to the document, which changes with them
  // The rest of the entry `name:` of the agent's variable ADDEND_NODE_RANK, as YAML.
  std::string node_rank;
  // Further variables of the agent, as YAML; placed before the others.
  std::vector<std::string> variables;
};

struct Workload {
  std::string kind;
  std::string name;  // of the object; empty: Kubernetes generates a name
  uint32_t num_nodes = 0;
  uint32_t local_size = 0;  // ranks on every node, from the object; 0: the object has no value
  // Follows the job's name where the object is several jobs; refers to the pods' variables.
  std::string job_suffix;
  std::vector<TrainingPods> pods;
};

// Makes an error that explains the problem of this node.
using Refuse = std::function<absl::Status(const YAML::Node&, const std::string&)>;

// Returns whether the object has the label or annotation `addend.io/inject: "true"`, without which
// a Pod counts as no training job.
bool IsMarked(const YAML::Node& document);
// Returns whether ReadWorkload supports this kind of object, or says in a sentence why it cannot.
bool IsWorkload(const YAML::Node& document);
// `replicated_job`: the training job of a JobSet; empty: the first.
absl::StatusOr<Workload> ReadWorkload(const YAML::Node& document, const std::string& replicated_job,
                                      const Refuse& refuse);

// Returns the largest number of GPUs that a container of the pods requests.
uint32_t GpusOf(const TrainingPods& pods);

}  // namespace addend
