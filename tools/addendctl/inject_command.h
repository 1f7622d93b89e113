// `addendctl inject`: adds the agent as a sidecar to the pods of a training job's Kubernetes YAML.
// A ResourceList is answered with a ResourceList, as kustomize expects of a KRM function: options
// come from the data of its functionConfig, by the names of the flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

struct InjectQuestion {
  std::string file;  // "-": standard input
  std::string scheduler;
  std::string job;              // empty: the object's name
  std::string image;            // the agent's image; empty: the image of this version
  std::string cpu;              // the agent's CPU request
  std::string cpu_limit;        // empty: the agent has none
  std::string memory;           // the agent's; empty: what the model needs
  std::string data_interface;   // of a second network of the pod, for gradients; empty: none
  std::string pull_secret;      // of the agent's image; empty: none
  std::string tls_secret;       // with tls.crt, tls.key and ca.crt; empty: gRPC in plain text
  std::string tls_server_name;  // that the certificates of all members have
  std::string job_secret;       // with the job's secret as `secret`; empty: none
  uint64_t model_bytes = 0;     // of all tensors; 0: unknown
  uint32_t local_size = 0;      // ranks on every node; 0: the object's value, else its GPUs, else 1
  std::string replicated_job;   // of a JobSet; empty: the first
};

struct Injected {
  std::string yaml;
  std::vector<std::string> notes;  // readable, one sentence each
};

// INVALID_ARGUMENT names an unsupported object, with file and line.
absl::StatusOr<Injected> Inject(const InjectQuestion& question, const std::string& text);

// Reads the file, prints the notes to standard error and returns the YAML; `json`: returns one line
// {"yaml", "notes"} instead.
absl::StatusOr<std::string> AnswerInject(const InjectQuestion& question, bool json);

}  // namespace addend
