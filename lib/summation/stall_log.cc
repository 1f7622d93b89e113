// The sentences about stalled rounds.
#include "lib/summation/stall_log.h"

#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace addend {
namespace {

constexpr double kSayAfter_s[] = {10, 60};
constexpr int kTimes = 2;
// A missing node is missing in every round: a sentence must not be longer than a screen.
constexpr size_t kNodesListed = 16;

std::string Describe(const OpenRoundInfo& round) {
  std::vector<uint32_t> nodes;
  for (const NodeId node : round.missing) {
    if (nodes.size() < kNodesListed) nodes.push_back(node.value());
  }
  std::string who =
      absl::StrFormat("node%s %s", nodes.size() == 1 ? "" : "s", absl::StrJoin(nodes, ", "));
  if (round.missing.size() > nodes.size()) {
    who += absl::StrFormat(" and %d others", round.missing.size() - nodes.size());
  }
  who += round.missing.size() == 1 ? " has" : " have";
  const std::string what = absl::StrFormat("round %d of tensor '%s' of job %d", round.round.value(),
                                           round.name, round.job.value());
  if (round.state == "recovering") {
    return absl::StrFormat("%s not reported where partition %d of tensor '%s' of job %d stands",
                           who, round.partition, round.name, round.job.value());
  }
  return absl::StrFormat("%s has been open for %.0f s: %s not pushed it", what, round.open_s, who);
}

}  // namespace

std::vector<std::string> StallLog::Check(std::span<const OpenRoundInfo> open) {
  std::vector<std::string> sentences;
  std::map<Key, int> still;
  std::set<Key> seen;
  for (const OpenRoundInfo& round : open) {
    const Key key{round.job, round.tensor, round.round};
    const auto known = said_.find(key);
    int& said = still[key];
    if (seen.insert(key).second) said = known == said_.end() ? 0 : known->second;
    if (said == kTimes || round.missing.empty() || round.open_s < kSayAfter_s[said]) continue;
    ++said;
    sentences.push_back(Describe(round));
  }
  said_ = std::move(still);
  return sentences;
}

}  // namespace addend
