#include "bench/options.h"

#include <numeric>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "bench/contents.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/plan/models.h"

ABSL_FLAG(std::string, sizes, "4KB,64KB,1MB,4MB,64MB",
          "Bytes of the tensor that is push-pulled, one line of the result for each; 100x4KB are a "
          "hundred tensors at once.");
ABSL_FLAG(std::string, model, "",
          "Push-pull all parameters of a model instead: resnet50, vgg16, bert-large or gpt2.");
ABSL_FLAG(int32_t, iterations, 20, "Measured rounds per size, at least 1.");
ABSL_FLAG(int32_t, warm_up, 3, "Rounds before the measured ones.");
ABSL_FLAG(bool, in_place, false,
          "Use tensors in the agent's memory (addend_alloc) and read the result there: no copies.");
ABSL_FLAG(absl::Duration, compute, absl::Milliseconds(500),
          "train: what a GPU computes in an iteration, forward and backward.");
ABSL_FLAG(
    bool, priority, true,
    "train: what the next forward pass needs first goes first; without it, in the order of the "
    "pushes.");
ABSL_FLAG(
    std::string, contents, "",
    "push-pull, local and train: fill the tensors with gradients that bench/contents recorded, "
    "instead of random numbers: a folder with a file per rank, or a file for all.");
ABSL_FLAG(bool, json, false, "Print JSON instead of a table.");
ABSL_FLAG(std::string, socket, "", "push-pull: the Unix socket of this node's agent.");
ABSL_FLAG(int32_t, nodes, 2, "local: GPU machines, each with an agent.");
ABSL_FLAG(int32_t, cpu_nodes, 0, "local: CPU machines, each with a summation server.");
ABSL_FLAG(int32_t, local_size, 1, "local: ranks per GPU machine.");
ABSL_FLAG(int32_t, shards, 0, "local: shards of every summation server; 0 takes the default.");
ABSL_FLAG(std::string, partition_bytes, "", "local: as of addend-agent; empty takes the default.");
ABSL_FLAG(std::string, shared_memory, "auto", "local: as of addend-agent and addend-summation.");

namespace addend {
namespace {

absl::StatusOr<uint32_t> InRange(const char* flag, int32_t value, int32_t least, int32_t most) {
  if (value >= least && value <= most) return static_cast<uint32_t>(value);
  return absl::InvalidArgumentError(
      absl::StrFormat("--%s=%d is out of range: it is from %d to %d", flag, value, least, most));
}

// Parses "4KB", or "100x4KB", to the bytes of each tensor. Returns nullopt for any other text.
std::optional<std::vector<uint64_t>> ParseTensors(absl::string_view word) {
  constexpr uint64_t kMostTensors = 10000;
  uint64_t tensors = 1;
  const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('x', 1));
  if (parts.size() == 2 &&
      (!absl::SimpleAtoi(parts[0], &tensors) || tensors == 0 || tensors > kMostTensors)) {
    return std::nullopt;
  }
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(std::string(parts.back()));
  if (!bytes.ok() || *bytes == 0 || *bytes % 4 != 0) return std::nullopt;
  return std::vector<uint64_t>(tensors, *bytes);
}

absl::StatusOr<std::vector<Workload>> WorkloadsOfSizes(const std::string& text) {
  std::vector<Workload> workloads;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const auto tensors = ParseTensors(word);
    if (!tensors) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--sizes=%s: '%s' is no size; give multiples of 4 bytes, as in 4KB,1MB,64MiB,100x4KB",
          text, word));
    }
    workloads.push_back({std::string(word), *tensors, /*is_model=*/false});
  }
  return workloads;
}

absl::StatusOr<std::vector<Workload>> WorkloadOfModel(const std::string& model) {
  const absl::StatusOr<std::vector<ModelTensor>> tensors = ModelTensors(model);
  if (!tensors.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--model=%s is unknown; there are resnet50, vgg16, bert-large and gpt2", model));
  }
  Workload workload{model, {}, /*is_model=*/true};
  for (const ModelTensor& tensor : *tensors) workload.tensor_bytes.push_back(tensor.elements * 4);
  return std::vector<Workload>{workload};
}

}  // namespace

uint64_t Workload::bytes() const {
  return std::accumulate(tensor_bytes.begin(), tensor_bytes.end(), uint64_t{0});
}

absl::StatusOr<BenchOptions> ReadBenchOptions() {
  BenchOptions options;
  const std::string model = absl::GetFlag(FLAGS_model);
  ADDEND_ASSIGN_OR_RETURN(options.workloads, model.empty()
                                                 ? WorkloadsOfSizes(absl::GetFlag(FLAGS_sizes))
                                                 : WorkloadOfModel(model));
  ADDEND_ASSIGN_OR_RETURN(options.iterations,
                          InRange("iterations", absl::GetFlag(FLAGS_iterations), 1, 1000000));
  ADDEND_ASSIGN_OR_RETURN(options.warm_up,
                          InRange("warm-up", absl::GetFlag(FLAGS_warm_up), 0, 1000000));
  ADDEND_ASSIGN_OR_RETURN(options.nodes, InRange("nodes", absl::GetFlag(FLAGS_nodes), 1, 1000));
  ADDEND_ASSIGN_OR_RETURN(options.cpu_nodes,
                          InRange("cpu-nodes", absl::GetFlag(FLAGS_cpu_nodes), 0, 1000));
  ADDEND_ASSIGN_OR_RETURN(options.local_size,
                          InRange("local-size", absl::GetFlag(FLAGS_local_size), 1, 64));
  ADDEND_ASSIGN_OR_RETURN(options.shards, InRange("shards", absl::GetFlag(FLAGS_shards), 0, 1024));
  options.in_place = absl::GetFlag(FLAGS_in_place);
  if (absl::GetFlag(FLAGS_compute) < absl::ZeroDuration() ||
      absl::GetFlag(FLAGS_compute) > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--compute=%s is out of range: it is from 0s to 1h",
                        absl::FormatDuration(absl::GetFlag(FLAGS_compute))));
  }
  options.compute_s = absl::ToDoubleSeconds(absl::GetFlag(FLAGS_compute));
  options.priority = absl::GetFlag(FLAGS_priority);
  options.contents = absl::GetFlag(FLAGS_contents);
  ADDEND_RETURN_IF_ERROR(CheckContentsPath(options.contents));
  options.json = absl::GetFlag(FLAGS_json);
  options.socket = absl::GetFlag(FLAGS_socket);
  options.partition_bytes = absl::GetFlag(FLAGS_partition_bytes);
  options.shared_memory = absl::GetFlag(FLAGS_shared_memory);
  return options;
}

}  // namespace addend
