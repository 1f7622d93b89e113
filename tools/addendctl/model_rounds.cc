#include "tools/addendctl/model_rounds.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/plan/models.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

nlohmann::ordered_json ToJson(const Simulation& simulation) {
  return {{"t_s", simulation.t_s},
          {"t_opt_s", simulation.t_opt_s},
          {"fill_s", simulation.fill_s},
          {"imbalance", simulation.imbalance},
          {"t_opt_encoded_s", simulation.t_opt_encoded_s}};
}

absl::StatusOr<ModelRounds> Simulate(const std::string& model,
                                     const std::vector<TensorSize>& tensors,
                                     const PartitionSize& partition_size, const PlanInput& input,
                                     bool alike) {
  ModelRounds rounds;
  rounds.model = model;
  rounds.tensors = tensors.size();
  rounds.bytes = BytesOf(tensors);
  for (const TensorSize& tensor : tensors) {
    const uint64_t bytes = partition_size.ForTensor(tensor.elements * SizeOf(tensor.dtype));
    rounds.partition_bytes = std::max(rounds.partition_bytes, bytes);
  }
  ADDEND_ASSIGN_OR_RETURN(rounds.balanced,
                          SimulateRound(input, tensors, partition_size, AssignmentKind::kBalanced));
  const size_t n = input.gpu_bps.size(), k = input.cpu_bps.size();
  if (alike && k <= n) {
    ADDEND_ASSIGN_OR_RETURN(rounds.hash,
                            SimulateRound(input, tensors, partition_size, AssignmentKind::kHash));
  }
  PlanInput more = input;
  for (size_t step = 1; alike && k + step <= n; step *= 2) {
    more.cpu_bps.assign(k + step, input.gpu_bps.front());
    ADDEND_ASSIGN_OR_RETURN(
        const Simulation simulation,
        SimulateRound(more, tensors, partition_size, AssignmentKind::kBalanced));
    rounds.further.push_back({k + step, simulation.t_s});
  }
  return rounds;
}

}  // namespace

absl::StatusOr<std::vector<TensorSize>> TensorsOfModel(const std::string& model) {
  const auto parameters = ModelTensors(model);
  if (!parameters.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat("--model: %s", Message(parameters.status())));
  }
  std::vector<TensorSize> tensors;
  for (const ModelTensor& parameter : *parameters) {
    tensors.push_back({parameter.elements, DType::kFloat32});
  }
  return tensors;
}

uint64_t BytesOf(const std::vector<TensorSize>& tensors) {
  uint64_t bytes = 0;
  for (const TensorSize& tensor : tensors) bytes += tensor.elements * SizeOf(tensor.dtype);
  return bytes;
}

std::vector<TensorSize> OneTensor(double bytes) {
  const auto elements = static_cast<uint64_t>(bytes) / SizeOf(DType::kFloat32);
  return {{std::max<uint64_t>(elements, 1), DType::kFloat32}};
}

absl::StatusOr<ModelRounds> SimulateModel(const std::string& model,
                                          const PartitionSize& partition_size,
                                          const PlanInput& input, bool alike) {
  ADDEND_ASSIGN_OR_RETURN(const std::vector<TensorSize> tensors, TensorsOfModel(model));
  return Simulate(model, tensors, partition_size, input, alike);
}

absl::StatusOr<ModelRounds> SimulateOneTensor(const PartitionSize& partition_size,
                                              const PlanInput& input, bool alike) {
  return Simulate("", OneTensor(input.bytes), partition_size, input, alike);
}

nlohmann::ordered_json ToJson(const ModelRounds& rounds) {
  nlohmann::ordered_json json = {
      {"model", rounds.model.empty() ? nlohmann::ordered_json(nullptr)
                                     : nlohmann::ordered_json(rounds.model)},
      {"tensors", rounds.tensors},
      {"bytes", rounds.bytes},
      {"partition_bytes", rounds.partition_bytes},
      {"partitions", rounds.balanced.partitions},
      {"balanced", ToJson(rounds.balanced)},
      {"hash", nullptr},
      {"further", nlohmann::ordered_json::array()}};
  if (rounds.hash) json["hash"] = ToJson(*rounds.hash);
  for (const auto& [cpu_nodes, t_s] : rounds.further) {
    json["further"].push_back({{"cpu_nodes", cpu_nodes}, {"t_s", t_s}});
  }
  return json;
}

std::string ToText(const ModelRounds& rounds) {
  const Simulation& ours = rounds.balanced;
  std::string text = absl::StrFormat(
      "\nWith the %d tensors of %s, in %d partitions of at most %s, a round takes about %s: %.3f "
      "times the optimum.",
      rounds.tensors, rounds.model, ours.partitions,
      FormatSize(static_cast<double>(rounds.partition_bytes)), FormatSeconds(ours.t_s),
      ours.t_s / ours.t_opt_encoded_s);
  if (rounds.hash) {
    absl::StrAppendFormat(&text, " With the paper's hashing it would be %.3f times.",
                          rounds.hash->t_s / rounds.hash->t_opt_encoded_s);
  }
  text += "\n";
  if (rounds.further.empty()) return text;
  Table table({"CPU MACHINES", "TIME PER STEP", "FASTER BY"});
  for (const auto& [cpu_nodes, t_s] : rounds.further) {
    table.Add({absl::StrFormat("%d", cpu_nodes), FormatSeconds(t_s),
               absl::StrFormat("%.3fx", ours.t_s / t_s)});
  }
  return text + "\n" + table.ToString();
}

}  // namespace addend
