// What `addendctl plan --model` adds: how long a round takes with the model's own tensors, and
// whether further CPU machines would help.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/plan/shares.h"
#include "lib/plan/simulation.h"

namespace addend {

struct ModelRounds {
  std::string model;  // empty: one tensor
  size_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t partition_bytes = 0;  // the largest
  Simulation balanced;
  std::optional<Simulation> hash;  // where the paper's formula has a value
  struct WithCpuNodes {
    size_t cpu_nodes;
    double t_s;
  };
  std::vector<WithCpuNodes>
      further;  // machines alike: more CPU machines, up to as many as GPU ones
};

// The bytes of all of a model's tensors. InvalidArgument for an unknown model.
absl::StatusOr<uint64_t> BytesOfModel(const std::string& model);
// `input`: machines with known bandwidths; `alike`: further machines may be added to them.
absl::StatusOr<ModelRounds> SimulateModel(const std::string& model,
                                          const PartitionSize& partition_size,
                                          const PlanInput& input, bool alike);
// The same for a single tensor of input.bytes.
absl::StatusOr<ModelRounds> SimulateOneTensor(const PartitionSize& partition_size,
                                              const PlanInput& input, bool alike);

nlohmann::ordered_json ToJson(const ModelRounds& rounds);
std::string ToText(const ModelRounds& rounds);

}  // namespace addend
