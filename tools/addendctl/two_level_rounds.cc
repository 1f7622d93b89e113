#include "tools/addendctl/two_level_rounds.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/plan/two_levels.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

// Partitions get half the size as long as the time becomes shorter by more than this.
constexpr double kWorthHalving = 0.003;
constexpr uint64_t kLargest = 128 << 10;

}  // namespace

absl::StatusOr<TwoLevelRounds> CompareTwoLevels(const PlanInput& input, const Plan& flat,
                                                double flat_s,
                                                const std::vector<TensorSize>& tensors,
                                                uint32_t groups, double uplink_bps,
                                                uint64_t partition_bytes) {
  ADDEND_ASSIGN_OR_RETURN(const TwoLevelInput network, EqualGroups(input, groups, uplink_bps));
  TwoLevelRounds rounds;
  rounds.groups = groups;
  rounds.gpu_nodes = input.gpu_bps.size() / groups;
  rounds.cpu_nodes = input.cpu_bps.size() / groups;
  rounds.partition_bytes = partition_bytes != 0 ? partition_bytes : kLargest;
  ADDEND_ASSIGN_OR_RETURN(rounds.two_levels,
                          SimulateTwoLevelRound(network, tensors, rounds.partition_bytes));
  while (partition_bytes == 0 && rounds.partition_bytes > kSmallestOfTwoLevels) {
    const uint64_t half = rounds.partition_bytes / 2;
    ADDEND_ASSIGN_OR_RETURN(const TwoLevelSimulation finer,
                            SimulateTwoLevelRound(network, tensors, half));
    if (finer.t_s > rounds.two_levels.t_s * (1 - kWorthHalving)) break;
    rounds.two_levels = finer;
    rounds.partition_bytes = half;
  }
  rounds.flat_opt_s = FlatTimeBetweenGroups(network, flat);
  rounds.flat_s = std::max(flat_s, rounds.flat_opt_s);
  rounds.flat_links = input.gpu_bps.size() + input.cpu_bps.size() - 1;
  return rounds;
}

nlohmann::ordered_json ToJson(const TwoLevelRounds& rounds) {
  const TwoLevelSimulation& ours = rounds.two_levels;
  return {{"groups", rounds.groups},
          {"partition_bytes", rounds.partition_bytes},
          {"partitions", ours.partitions},
          {"t_opt_s", ours.t_opt_s},
          {"t_s", ours.t_s},
          {"fill_s", ours.fill_s},
          {"imbalance", ours.imbalance},
          {"links", ours.links},
          {"flat",
           {{"t_opt_s", rounds.flat_opt_s}, {"t_s", rounds.flat_s}, {"links", rounds.flat_links}}}};
}

std::string ToText(const TwoLevelRounds& rounds) {
  const TwoLevelSimulation& ours = rounds.two_levels;
  std::string text = absl::StrFormat("\nIn %d groups of %d GPU and %d CPU machines:\n\n",
                                     rounds.groups, rounds.gpu_nodes, rounds.cpu_nodes);
  Table table({"", "OPTIMAL", "TIME PER STEP", "LINKS OF AN AGENT"});
  table.Add({"Two levels", FormatSeconds(ours.t_opt_s), FormatSeconds(ours.t_s),
             absl::StrFormat("%d", ours.links)});
  table.Add({"Flat", FormatSeconds(rounds.flat_opt_s), FormatSeconds(rounds.flat_s),
             absl::StrFormat("%d", rounds.flat_links)});
  return text + table.ToString() +
         "\nThis version makes flat plans: the other is what a plan of two levels would take.\n";
}

}  // namespace addend
