// The end of members and jobs.
#include "services/scheduler/roster.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "services/scheduler/declarations.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/replacement.h"

namespace addend {

void Roster::RemoveServer(ServerId id, std::string_view kind, const std::string& why) {
  leases_.Close(&fleet_.Find(id)->lease, absl::NotFoundError(why), &changes_);
  const Server server = fleet_.Remove(id);
  changes_.Delete(id);
  if (kind == event_kind::kLost) {
    ++(server.colocated() ? changes_.lost().colocated_servers : changes_.lost().cpu_servers);
  }
  if (server.colocated()) {
    changes_.Say(why);  // people are told of its node
  } else {
    changes_.Note(kind, "", why);
  }
  for (auto& [job_id, job] : jobs_) {
    job.current.told.servers.erase(id);  // another process may get the number
    if (server.colocated()) LoseNodeOf(&job, server, why);
    Replacement(ScopeOf(job)).LoseServer(id, why);
    Lifecycle(ScopeOf(job)).UpdateForming();
  }
}

// Only if other nodes need the sums of the colocated server.
void Roster::LoseNodeOf(Job* job, const Server& server, const std::string& why) {
  const Agreements& tensors = job->current.tensors;
  const auto owned = std::count_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return tensor.second.stage == v1::AgreementRecord::PLANNED &&
           tensor.second.owned.contains(server.id);
  });
  const NodeId rank(server.info.colocated_node());
  if (owned == 0 || job->current.gone.contains(rank)) return;
  const Node* const node = job->Find(rank);
  if (node != nullptr && job->TakesPart(*node)) {
    return RemoveNode(job, rank, absl::StrFormat("%s was lost: %s", NameOf(*job, *node), why),
                      true);
  }
  // The node has ended already, and cannot report its results any more.
  Lifecycle(ScopeOf(*job))
      .Fail(absl::StrFormat("%s, and with it the partitions it summed for %d tensors of job '%s'",
                            why, owned, job->name),
            FailureKind::kPeerLost);
  if (node == nullptr) LoseNode(job, rank, why);
}

void Roster::RemoveNode(Job* job, NodeId rank, const std::string& why, bool lost) {
  Node& node = *job->Find(rank);
  leases_.Close(&node.lease, absl::NotFoundError(why), &changes_);
  const bool takes_part = job->current.state != v1::FORMING && job->TakesPart(node);
  const uint64_t incarnation = node.info.incarnation();
  if (lost) {
    job->current.lost[rank] = incarnation;
    ++changes_.lost().nodes;
  }
  changes_.Delete(job->id, rank);
  changes_.Store(job->id);
  job->frames.Remove(node.info.protocols());
  job->nodes.erase(rank);
  changes_.Note(lost ? event_kind::kLost : event_kind::kLeft, job->name,
                absl::StrFormat("job '%s': %s", job->name, why));
  Lifecycle lifecycle(ScopeOf(*job));
  if (job->nodes.empty()) {
    if (!lost) return RemoveJob(job);
    job->empty_since = changes_.now();
    if (job->current.state != v1::FORMING) lifecycle.StartNextGeneration();
  } else {
    if (takes_part || job->current.state == v1::FAILED) LoseNode(job, rank, why);
    // The node may have waited for the next generation.
    if (job->current.state == v1::READY) changes_.Broadcast(job->id);
    lifecycle.UpdateForming();
    lifecycle.TellIdleNodes();
    lifecycle.StartNextGenerationIfIdle();
  }
  // The colocated server of the same process.
  const Server* const server = lost ? ColocatedServer(*job, rank, fleet_) : nullptr;
  if (server != nullptr && server->info.incarnation() == incarnation) {
    RemoveServer(server->id, event_kind::kLost, NameOf(*server) + " was lost with its node");
  }
}

void Roster::LoseNode(Job* job, NodeId rank, const std::string& why) {
  JobGeneration& current = job->current;
  current.gone[rank] = why;
  for (auto& [other, node] : job->nodes) node.accusers.erase(rank);
  changes_.Store(job->id);
  Lifecycle lifecycle(ScopeOf(*job));
  lifecycle.TellServers();
  changes_.Single(job->id, rank);  // if its agent lives
  if (current.state == v1::FORMING) return;
  Replacement(ScopeOf(*job)).EndRelays(why);
  if (current.state != v1::READY) return;
  const auto left = std::count_if(job->nodes.begin(), job->nodes.end(),
                                  [job](const auto& node) { return job->TakesPart(node.second); });
  if (!job->Shrinks() || left == 0) return lifecycle.Fail(why, FailureKind::kPeerLost);
  changes_.Note(event_kind::kGeneration, job->name,
                absl::StrFormat("job '%s' goes on with %d of %d nodes", job->name, left,
                                job->settings.num_nodes()));
  changes_.Broadcast(job->id);
  current.pace.StartOver(changes_.now());
  Declarations declarations(ScopeOf(*job));
  declarations.GoOnWithout();
  declarations.Plan();
}

// The job's nodes are gone already.
void Roster::RemoveJob(Job* job) {
  Lifecycle(ScopeOf(*job)).DropTensors();
  for (const Server* server : EligibleServers(*job, fleet_)) {
    changes_.ReleaseJob(server->id, job->id, job->current.number);
  }
  changes_.Note(event_kind::kLeft, job->name, absl::StrFormat("job '%s' has ended", job->name));
  changes_.Delete(job->id);
  jobs_.Remove(job->id);
}

void Roster::AccuseServer(Job* job, Server* server, const Node& reporter,
                          const std::string& reason) {
  leases_.Accuse(changes_.now(),
                 absl::StrFormat("%s was lost: %s cannot reach it (%s)", NameOf(*server),
                                 NameOf(reporter), reason),
                 server);
  const ServerId id = server->id;
  JudgeServers();
  if (fleet_.Find(id) == nullptr) return;
  Replacement(ScopeOf(*job))
      .LeaveServer(server, absl::StrFormat("%s cannot reach %s (%s)", NameOf(reporter),
                                           NameOf(*server), reason));
}

void Roster::AccuseNode(Job* job, const Server& server, const Node& reporter,
                        const std::string& reason) {
  if (Node* const node = NodeOf(job, server); node != nullptr) {
    leases_.Accuse(changes_.now(), reporter.rank,
                   absl::StrFormat("%s cannot reach it (%s)", NameOf(reporter), reason), node);
  }
  JudgeNodes();
}

Node* Roster::NodeOf(Job* job, const Server& server) {
  Node* const node = job->Find(NodeId(server.info.colocated_node()));
  const bool its = server.info.colocated_job() == job->name;
  return node != nullptr && its && job->TakesPart(*node) ? node : nullptr;
}

void Roster::Withdraw(Job* job, const Server& server, NodeId reporter) {
  if (!server.colocated()) return;
  if (Node* const node = NodeOf(job, server); node != nullptr) node->accusers.erase(reporter);
}

void Roster::LoseForgotten() {
  for (auto& [id, job] : jobs_) {
    std::set<ServerId> gone;
    for (const auto& [agreement, tensor] : job.current.tensors) {
      for (const auto& [server, owned] : tensor.owned) {
        if (fleet_.Find(server) == nullptr) gone.insert(server);
      }
    }
    for (const ServerId server : gone) {
      Replacement(ScopeOf(job))
          .LoseServer(server, absl::StrFormat(
                                  "summation server %d was lost before a restart of the scheduler",
                                  server.value()));
    }
  }
}

void Roster::EndLeases() {
  if (!leases_.IsDue(changes_.now())) return;
  EndExpired();
  JudgeNodes();
  JudgeServers();
  for (auto& [id, job] : jobs_) {
    const size_t over = std::erase_if(
        job.avoided, [this](const auto& avoided) { return avoided.second <= changes_.now(); });
    if (over > 0) job.current.rebalance = PlanReason::kJoin;
  }
  for (const JobId id : leases_.Abandoned(changes_.now(), jobs_)) RemoveJob(&jobs_.at(id));
  leases_.PlanLook(changes_.now(), fleet_, jobs_);
}

// Nodes first: where an agent died, the reason should name its node and not its server.
void Roster::EndExpired() {
  for (auto& [id, job] : jobs_) {
    for (const NodeId rank : leases_.Expired(changes_.now(), job)) {
      const Node& node = *job.Find(rank);
      RemoveNode(&job, rank,
                 absl::StrFormat("%s was lost: %s", NameOf(job, node),
                                 leases_.WhyExpired(changes_.now(), node.lease)),
                 true);
    }
  }
  for (const ServerId id : leases_.Expired(changes_.now(), fleet_)) {
    const Server& server = *fleet_.Find(id);
    RemoveServer(id, event_kind::kLost,
                 absl::StrFormat("%s was lost: %s", NameOf(server),
                                 leases_.WhyExpired(changes_.now(), server.lease)));
  }
}

void Roster::JudgeNodes() {
  for (auto& [id, job] : jobs_) {
    while (const Node* guilty = leases_.Guilty(changes_.now(), job)) {
      const NodeId rank = guilty->rank;
      const std::string reason = guilty->accusers.begin()->second;
      RemoveNode(&job, rank, absl::StrFormat("%s was lost: %s", NameOf(job, *guilty), reason),
                 true);
    }
  }
}

void Roster::JudgeServers() {
  for (const ServerId id : Leases::Guilty(fleet_)) {
    const std::string why = fleet_.Find(id)->accusation;
    RemoveServer(id, event_kind::kLost, why);
  }
}

}  // namespace addend
