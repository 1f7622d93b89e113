// `addendctl inject`: a training job's Kubernetes YAML with the agent as a sidecar of its pods.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

struct InjectQuestion {
  std::string file;  // "-": standard input
  std::string scheduler;
  std::string job;           // empty: the object's name
  std::string image;         // of the agent; empty: the one of this version
  std::string cpu;           // that the agent asks for
  uint64_t model_bytes = 0;  // of all tensors; 0: not known
  uint32_t local_size = 0;   // ranks on every node; 0: what the object says, else its GPUs, else 1
  std::string replicated_job;  // of a JobSet; empty: the first
};

struct Injected {
  std::string yaml;
  std::vector<std::string> notes;  // for people, one sentence each
};

// INVALID_ARGUMENT: what cannot work, with file and line.
absl::StatusOr<Injected> Inject(const InjectQuestion& question, const std::string& text);

// Reads the file, prints the notes to standard error and returns the YAML; `json`: one line
// {"yaml", "notes"} instead.
absl::StatusOr<std::string> AnswerInject(const InjectQuestion& question, bool json);

}  // namespace addend
