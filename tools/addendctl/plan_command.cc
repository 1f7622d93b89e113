#include "tools/addendctl/plan_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/plan/assignment.h"
#include "lib/plan/shares.h"
#include "tools/addendctl/model_rounds.h"
#include "tools/addendctl/table.h"
#include "tools/addendctl/two_level_rounds.h"

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

// A larger number would be a typing error, and would take the machine's memory.
constexpr uint32_t kMaxMachines = 1'000'000;
// A tensor of more partitions is not simulated: its round takes nearly t_opt.
constexpr uint64_t kMaxSimulated = 1'000'000;
// Each partition has a server in every group. More would take minutes.
constexpr uint64_t kMaxGroupSums = 100'000'000;

absl::Status CheckRatio(const char* flag, double ratio) {
  if (ratio > 0 && ratio <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is the number of bytes on the wire for each raw byte, above 0 and at most 1, not %g",
      flag, ratio));
}

absl::Status CheckGroups(const PlanQuestion& question) {
  if (question.groups == 0 && question.uplink_bps == 0) return absl::OkStatus();
  if (question.groups < 2) {
    return absl::InvalidArgumentError(
        "--groups compares plans for at least 2 groups of machines, and --uplink is the bandwidth "
        "between them");
  }
  if (question.bandwidth_bps == 0 || !question.bandwidths.empty()) {
    return absl::InvalidArgumentError(
        "--groups needs equal machines of known bandwidth: --bandwidth=100Gbps");
  }
  if (question.ratios != WireRatios()) {
    return absl::InvalidArgumentError(
        "--groups compares raw bytes, without --contribution-ratio and --result-ratio");
  }
  return absl::OkStatus();
}

absl::Status Check(const PlanQuestion& question) {
  if (question.gpu_nodes == 0) {
    return absl::InvalidArgumentError(
        "plan needs --gpu-nodes=N, the number of the job's GPU machines, at least 1");
  }
  if (question.gpu_nodes > kMaxMachines || question.cpu_nodes > kMaxMachines) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--gpu-nodes and --cpu-nodes are at most %d for plan", kMaxMachines));
  }
  if (question.model.empty() == (question.bytes == 0)) {
    return absl::InvalidArgumentError(
        "plan needs either --bytes=SIZE, the size of all gradients together, such as 1GB, or "
        "--model=NAME");
  }
  ADDEND_RETURN_IF_ERROR(CheckRatio("--contribution-ratio", question.ratios.contributions));
  ADDEND_RETURN_IF_ERROR(CheckRatio("--result-ratio", question.ratios.results));
  return CheckGroups(question);
}

absl::Status ReadBandwidths(const PlanQuestion& question, PlanInput* input) {
  const std::vector<std::string> texts = absl::StrSplit(question.bandwidths, ',');
  const size_t machines = size_t{question.gpu_nodes} + question.cpu_nodes;
  if (texts.size() != machines) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--bandwidths has %d values, but --gpu-nodes=%d and --cpu-nodes=%d are %d machines: name "
        "each once, GPU machines first",
        texts.size(), question.gpu_nodes, question.cpu_nodes, machines));
  }
  for (size_t i = 0; i < machines; ++i) {
    const auto bps = ParseBandwidth(texts[i]);
    if (!bps.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--bandwidths: value %d: %s", i + 1, Message(bps.status())));
    }
    if (i < question.gpu_nodes) {
      input->gpu_bps[i] = *bps;
    } else {
      input->cpu_bps[i - question.gpu_nodes] = *bps;
    }
  }
  return absl::OkStatus();
}

// Returns a CPU machine's share by Eq. 1, or its form for encoded payloads. Without CPU machines
// the value is the share that the first CPU machine would get.
double CpuShare(const PlanQuestion& question, const Plan& plan) {
  if (!plan.cpu_shares.empty()) return plan.cpu_shares.front();
  const double n = question.gpu_nodes;
  const auto [smaller, larger] =
      std::minmax(question.ratios.contributions, question.ratios.results);
  if (smaller * (n - 1) < larger) return 0;
  return (1 + smaller / larger) * (n - 1) / (n * n);
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::string ToJson(const PlanQuestion& question, const Plan& plan,
                   const std::optional<ModelRounds>& rounds,
                   const std::optional<TwoLevelRounds>& two_levels) {
  Json json;
  json["n"] = question.gpu_nodes;
  json["k"] = question.cpu_nodes;
  if (question.bandwidths.empty()) {
    json["share_cpu"] = CpuShare(question, plan);
    json["share_gpu"] = plan.gpu_shares.front();
  } else {
    std::vector<double> shares = plan.gpu_shares;
    shares.insert(shares.end(), plan.cpu_shares.begin(), plan.cpu_shares.end());
    json["shares"] = shares;
  }
  json["t_opt_s"] = OrNull(plan.t_opt_s);
  json["t_allreduce_s"] = OrNull(plan.t_allreduce_s);
  json["t_ps_s"] = OrNull(plan.t_ps_s);
  json["speedup_vs_allreduce"] = OrNull(plan.speedup_vs_allreduce);
  json["speedup_vs_ps"] = OrNull(plan.speedup_vs_ps);
  json["contribution_ratio"] = question.ratios.contributions;
  json["result_ratio"] = question.ratios.results;
  json["t_opt_encoded_s"] = OrNull(plan.t_opt_encoded_s);
  if (rounds) json["simulation"] = ToJson(*rounds);
  if (two_levels) json["two_levels"] = ToJson(*two_levels);
  return json.dump() + "\n";
}

std::string Machines(uint32_t count, const char* kind) {
  return absl::StrFormat("%d %s machine%s", count, kind, count == 1 ? "" : "s");
}

std::string ShareLines(const PlanQuestion& question, const PlanInput& input, const Plan& plan) {
  if (question.bandwidths.empty()) {
    std::string text = absl::StrFormat("Each GPU machine sums %s of the bytes",
                                       FormatPercent(plan.gpu_shares.front()));
    if (!plan.cpu_shares.empty()) {
      text += absl::StrFormat(", each CPU machine %s", FormatPercent(plan.cpu_shares.front()));
    }
    return text + ".\n\n";
  }
  Table table({"MACHINE", "BANDWIDTH", "SHARE"});
  for (size_t i = 0; i < plan.gpu_shares.size(); ++i) {
    table.Add({absl::StrFormat("GPU %d", i), FormatBandwidth(input.gpu_bps[i]),
               FormatPercent(plan.gpu_shares[i])});
  }
  for (size_t i = 0; i < plan.cpu_shares.size(); ++i) {
    table.Add({absl::StrFormat("CPU %d", i), FormatBandwidth(input.cpu_bps[i]),
               FormatPercent(plan.cpu_shares[i])});
  }
  return table.ToString() + "\n";
}

std::string TimeLines(const PlanQuestion& question, const Plan& plan) {
  if (!plan.t_opt_s.has_value()) return "";
  Table table({"", "TIME PER STEP", "ADDEND IS FASTER BY"});
  table.Add({"Addend, optimal", FormatSeconds(*plan.t_opt_s), ""});
  if (question.ratios != WireRatios()) {
    table.Add({"Addend, optimal, encoded", FormatSeconds(*plan.t_opt_encoded_s), ""});
  }
  const auto add = [&table](const char* name, const std::optional<double>& time,
                            const std::optional<double>& speedup) {
    if (!time.has_value()) return;
    table.Add({name, FormatSeconds(*time), speedup ? absl::StrFormat("%.3fx", *speedup) : "-"});
  };
  add("All-reduce", plan.t_allreduce_s, plan.speedup_vs_allreduce);
  add("Parameter server", plan.t_ps_s, plan.speedup_vs_ps);
  return table.ToString() + "\n";
}

std::string ToText(const PlanQuestion& question, const PlanInput& input, const Plan& plan,
                   const std::optional<ModelRounds>& rounds,
                   const std::optional<TwoLevelRounds>& two_levels) {
  return absl::StrFormat("%s, %s, %s of gradients per step\n", Machines(question.gpu_nodes, "GPU"),
                         Machines(question.cpu_nodes, "CPU"), FormatSize(input.bytes)) +
         ShareLines(question, input, plan) + TimeLines(question, plan) + ExplainFloor(plan) + "\n" +
         (rounds ? ToText(*rounds) : "") + (two_levels ? ToText(*two_levels) : "");
}

// Returns no value if the time is unknown; without a model, also if the answer is not JSON or the
// tensor has too many partitions.
absl::StatusOr<std::optional<ModelRounds>> Simulate(const PlanQuestion& question,
                                                    const PlanInput& input, const Plan& plan) {
  if (!plan.t_opt_s) return std::nullopt;
  const size_t machines = input.gpu_bps.size() + input.cpu_bps.size();
  const double slowest = *std::min_element(input.gpu_bps.begin(), input.gpu_bps.end());
  const PartitionSize partition_size = question.partition_bytes != 0
                                           ? PartitionSize(question.partition_bytes)
                                           : PartitionSize::Auto(slowest, machines);
  const bool alike = question.bandwidths.empty();
  if (!question.model.empty()) {
    return SimulateModel(question.model, partition_size, input, alike);
  }
  const uint64_t partitions = question.bytes / partition_size.ForTensor(question.bytes);
  if (!question.json || partitions > kMaxSimulated) return std::nullopt;
  return SimulateOneTensor(partition_size, input, alike);
}

}  // namespace

absl::StatusOr<std::string> AnswerPlan(const PlanQuestion& question) {
  ADDEND_RETURN_IF_ERROR(Check(question));
  std::vector<TensorSize> tensors = OneTensor(static_cast<double>(question.bytes));
  uint64_t bytes = question.bytes;
  if (!question.model.empty()) {
    ADDEND_ASSIGN_OR_RETURN(tensors, TensorsOfModel(question.model));
    bytes = BytesOf(tensors);
  }
  PlanInput input = HomogeneousInput(question.gpu_nodes, question.cpu_nodes,
                                     static_cast<double>(bytes), question.bandwidth_bps);
  if (!question.bandwidths.empty()) ADDEND_RETURN_IF_ERROR(ReadBandwidths(question, &input));
  input.ratios = question.ratios;
  ADDEND_ASSIGN_OR_RETURN(const Plan plan, MakePlan(input));
  ADDEND_ASSIGN_OR_RETURN(const auto rounds, Simulate(question, input, plan));
  std::optional<TwoLevelRounds> two_levels;
  if (question.groups > 0) {
    const uint64_t most = kMaxGroupSums / question.groups;
    const uint64_t partition_bytes =
        question.partition_bytes != 0 ? question.partition_bytes : kSmallestOfTwoLevels;
    if (bytes / partition_bytes > most) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--groups: plan simulates at most %d partitions for %d groups, not %d: "
                          "give fewer groups, "
                          "or larger --partition-bytes",
                          most, question.groups, bytes / partition_bytes));
    }
    const double flat_s = rounds ? rounds->balanced.t_s : plan.t_opt_s.value_or(0);
    const auto compared = CompareTwoLevels(input, plan, flat_s, tensors, question.groups,
                                           question.uplink_bps, question.partition_bytes);
    if (!compared.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--groups: %s", Message(compared.status())));
    }
    two_levels = *compared;
  }
  return question.json ? ToJson(question, plan, rounds, two_levels)
                       : ToText(question, input, plan, rounds, two_levels);
}

}  // namespace addend
