#include "services/scheduler/numbering.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/base/failure.h"
#include "lib/network/order.h"
#include "services/scheduler/network_view.h"

namespace addend {
namespace {

// An agent asks twice a second. One that does not ask any more is gone, or has registered.
constexpr absl::Duration kForgottenAfter = absl::Seconds(5);
// Agents of a job that has all of them measure each other for so long at most, and until each pair
// was measured so often. Of many hosts not all pairs are waited for, but the whole time.
constexpr absl::Duration kMeasuring = absl::Seconds(20);
constexpr uint32_t kTimesEach = 8;
// More hosts would take seconds to group, during which the scheduler answers nobody: they have to
// be told their places.
constexpr size_t kMeasuredHosts = 1024;
// The job whose agents asked longest ago gives way.
constexpr size_t kNumberedJobs = 1024;

}  // namespace

absl::StatusOr<v1::NumberNodeResponse> Numbering::Ask(absl::Time now,
                                                      const v1::NumberNodeRequest& request,
                                                      const Job* job, NetworkMap* map) {
  const v1::RegisterNodeRequest& node = request.node();
  const uint32_t nodes = node.settings().num_nodes();
  DropOldJobs(now);
  Asking& asking = jobs_[{node.job(), auth::DigestOf(node.join_proof())}];
  asking.asked = now;
  ForgetSilent(now, job, &asking);
  const std::vector<uint32_t> free = FreeRanks(job, asking, nodes);
  if (!asking.candidates.contains(request.incarnation()) && Waiting(asking) >= free.size()) {
    // A number that was given and is not in use is free again in a moment.
    if (free.size() + Unused(job, asking) > Waiting(asking)) {
      v1::NumberNodeResponse response;
      response.set_waits_for(absl::StrFormat(
          "all %d numbers of job '%s' are given, some to agents that are gone or have yet to come",
          nodes, node.job()));
      return response;
    }
    return WithKind(
        absl::FailedPreconditionError(absl::StrFormat(
            "job '%s' has all of its %d nodes: stop an agent, or give all agents another "
            "--num-nodes",
            node.job(), nodes)),
        FailureKind::kInvalid);
  }
  Candidate& candidate = asking.candidates[request.incarnation()];
  candidate.control_address = node.control_address();
  candidate.hostname = node.hostname();
  candidate.asked = now;

  v1::NumberNodeResponse response;
  map->Take(now, node.control_address(), request.probes());
  map->Choose(now, node.control_address(), response.mutable_probe());
  if (!candidate.numbered) {
    const size_t waiting = Waiting(asking);
    if (waiting < free.size()) {
      asking.complete_since = absl::InfiniteFuture();
      response.set_waits_for(absl::StrFormat("%d of the %d nodes of job '%s' are missing",
                                             free.size() - waiting, nodes, node.job()));
      return response;
    }
    asking.complete_since = std::min(asking.complete_since, now);
    if (map->measures() && !map->AllTold() && now - asking.complete_since < kMeasuring &&
        !Measured(asking, *map)) {
      response.set_waits_for(absl::StrFormat(
          "the %d nodes of job '%s' measure the network between them", nodes, node.job()));
      return response;
    }
    NumberAll(*map, free, &asking);
  }
  response.set_numbered(true);
  response.set_node_rank(candidate.rank);
  return response;
}

// A node that has registered has its number from the job.
void Numbering::ForgetSilent(absl::Time now, const Job* job, Asking* asking) const {
  std::erase_if(asking->candidates, [&](const auto& entry) {
    const auto& [incarnation, candidate] = entry;
    if (now - candidate.asked > kForgottenAfter) return true;
    if (job == nullptr || !candidate.numbered) return false;
    const auto node = job->nodes.find(NodeId(candidate.rank));
    return node != job->nodes.end() && node->second.info.incarnation() == incarnation;
  });
}

void Numbering::DropOldJobs(absl::Time now) {
  std::erase_if(jobs_,
                [now](const auto& entry) { return now - entry.second.asked > kForgottenAfter; });
  while (jobs_.size() >= kNumberedJobs) {
    jobs_.erase(std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
      return a.second.asked < b.second.asked;
    }));
  }
}

size_t Numbering::Waiting(const Asking& asking) {
  return static_cast<size_t>(
      std::count_if(asking.candidates.begin(), asking.candidates.end(),
                    [](const auto& entry) { return !entry.second.numbered; }));
}

size_t Numbering::Unused(const Job* job, const Asking& asking) {
  return static_cast<size_t>(
      std::count_if(asking.candidates.begin(), asking.candidates.end(), [job](const auto& entry) {
        return entry.second.numbered &&
               (job == nullptr || !job->nodes.contains(NodeId(entry.second.rank)));
      }));
}

std::vector<uint32_t> Numbering::FreeRanks(const Job* job, const Asking& asking, uint32_t nodes) {
  std::set<uint32_t> taken;
  for (const auto& [incarnation, candidate] : asking.candidates) {
    if (candidate.numbered) taken.insert(candidate.rank);
  }
  if (job != nullptr) {
    for (const auto& [rank, node] : job->nodes) taken.insert(rank.value());
  }
  std::vector<uint32_t> free;
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    if (!taken.contains(rank)) free.push_back(rank);
  }
  return free;
}

// Hosts that cannot be measured, such as those of names instead of numbers, are not waited for.
bool Numbering::Measured(const Asking& asking, const NetworkMap& map) {
  std::set<std::string> hosts;
  for (const auto& [incarnation, candidate] : asking.candidates) {
    hosts.insert(NumericHost(candidate.control_address));
  }
  hosts.erase("");
  return map.AllMeasured(hosts, kTimesEach);
}

// In the order of neighbours; agents of one machine by their addresses.
void Numbering::NumberAll(const NetworkMap& map, const std::vector<uint32_t>& ranks,
                          Asking* asking) {
  std::map<std::string, uint32_t> place;
  NetworkFacts facts = map.Facts();
  if (facts.hosts.size() > kMeasuredHosts) facts.pairs.clear();
  const HostGroups groups = GroupsOf(facts).groups;
  for (const uint32_t host : NeighbourOrder(static_cast<uint32_t>(facts.hosts.size()), groups)) {
    place.emplace(facts.hosts[host].address, static_cast<uint32_t>(place.size()));
  }
  std::vector<std::pair<std::pair<uint32_t, std::string>, Candidate*>> order;
  for (auto& [incarnation, candidate] : asking->candidates) {
    if (candidate.numbered) continue;
    const auto found = place.find(NumericHost(candidate.control_address));
    const uint32_t at = found == place.end() ? static_cast<uint32_t>(place.size()) : found->second;
    order.push_back({{at, candidate.control_address}, &candidate});
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size() && i < ranks.size(); ++i) {
    order[i].second->numbered = true;
    order[i].second->rank = ranks[i];
  }
}

}  // namespace addend
