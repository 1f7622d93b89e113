// The part of `addendctl plan --model`: the time of a round with the model's own tensors, and the
// benefit of further CPU machines.
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
  std::string model;  // empty: a single tensor
  size_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t partition_bytes = 0;  // the largest partition
  Simulation balanced;
  std::optional<Simulation> hash;  // set where the paper's formula has a value
  struct WithCpuNodes {
    size_t cpu_nodes;
    double t_s;
  };
  // For equal machines: more CPU machines, up to the number of GPU machines.
  std::vector<WithCpuNodes> further;
};

// The tensors of a model. InvalidArgument for an unknown model.
absl::StatusOr<std::vector<TensorSize>> TensorsOfModel(const std::string& model);
uint64_t BytesOf(const std::vector<TensorSize>& tensors);
// A tensor of float32.
std::vector<TensorSize> OneTensor(double bytes);
// `input`: machines with known bandwidths; `alike`: equal machines, so that further machines may be
// added.
absl::StatusOr<ModelRounds> SimulateModel(const std::string& model,
                                          const PartitionSize& partition_size,
                                          const PlanInput& input, bool alike);
// Simulates a single tensor of input.bytes.
absl::StatusOr<ModelRounds> SimulateOneTensor(const PartitionSize& partition_size,
                                              const PlanInput& input, bool alike);

nlohmann::ordered_json ToJson(const ModelRounds& rounds);
std::string ToText(const ModelRounds& rounds);

}  // namespace addend
