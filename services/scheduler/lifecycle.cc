// The life of a generation.
#include "services/scheduler/lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/node_list.h"

namespace addend {
namespace {

// The shortest time between two sentences about a forming job: of n nodes that join in turn, each
// would else be told n times. Longer for very many nodes, each of which is told.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
constexpr absl::Duration kProgressIntervalForEach = absl::Milliseconds(1);
// Of more nodes it would take long to look at all of them whenever one has taken a step.
constexpr size_t kLookedAtEachStep = 64;

bool IsLarge(const Job& job) { return job.nodes.size() > kLookedAtEachStep; }

absl::Duration ProgressInterval(const Job& job) {
  return std::max(kProgressInterval,
                  kProgressIntervalForEach * static_cast<double>(job.nodes.size()));
}

// Takes as long as there are nodes that have registered, however many nodes the job claims.
NodeList NotRegistered(const Job& job) {
  NodeList missing;
  uint32_t next = 0;
  const auto skip_to = [&](uint32_t rank) {
    for (; next < rank && !missing.full(); ++next) missing.Add(next);
    next = rank + 1;
  };
  for (const auto& [rank, node] : job.nodes) skip_to(rank.value());
  skip_to(job.settings.num_nodes());
  missing.SetCount(job.settings.num_nodes() - job.nodes.size());
  return missing;
}

enum class Lack : uint8_t { kNothing, kWatch, kServer, kTrainers };

// What a registered node lacks until its job can begin.
Lack LackOf(const Job& job, const Node& node, const Fleet& fleet) {
  if (node.lease.watch == 0) return Lack::kWatch;
  if (node.info.colocated_server_id() != 0 && ColocatedServer(job, node.rank, fleet) == nullptr) {
    return Lack::kServer;
  }
  return node.trainers < job.settings.local_size() ? Lack::kTrainers : Lack::kNothing;
}

// The job cannot begin yet. Looks at few nodes, except where the answer is no: the node that held
// the job up before may still do so, and all nodes before it lacked nothing then.
bool IsHeldUp(const Fleet& fleet, Job* job) {
  if (job->nodes.size() < job->settings.num_nodes()) return true;
  const auto lacks = [&](const auto& node) {
    return LackOf(*job, node.second, fleet) != Lack::kNothing;
  };
  auto holds_up =
      std::find_if(job->nodes.lower_bound(job->current.held_up_by), job->nodes.end(), lacks);
  if (holds_up == job->nodes.end()) {
    holds_up = std::find_if(job->nodes.begin(), job->nodes.end(), lacks);
  }
  if (holds_up == job->nodes.end()) return false;
  job->current.held_up_by = holds_up->first;
  return true;
}

}  // namespace

std::string WaitsFor(const Job& job, const Fleet& fleet) {
  const NodeList missing = NotRegistered(job);
  NodeList unwatched;
  NodeList without_server;
  NodeList without_trainers;
  const uint32_t n = job.settings.num_nodes();
  for (const auto& [rank, node] : job.nodes) {
    switch (LackOf(job, node, fleet)) {
      case Lack::kNothing:
        break;
      case Lack::kWatch:
        unwatched.Add(rank.value());
        break;
      case Lack::kServer:
        without_server.Add(rank.value());
        break;
      case Lack::kTrainers:
        without_trainers.Add(rank.value());
        break;
    }
  }
  const auto sentence = [n](const NodeList& nodes, std::string_view state) {
    return absl::StrFormat("waiting for %s of %d (node ranks 0..%d): %s", nodes.Text(), n, n - 1,
                           state);
  };
  if (missing.count() > 0) return sentence(missing, "not registered");
  if (unwatched.count() > 0) return sentence(unwatched, "registered, but not connected");
  if (without_server.count() > 0) {
    return sentence(without_server, "the colocated summation server is not registered");
  }
  if (without_trainers.count() == 1 && job.settings.local_size() > 1) {
    return sentence(without_trainers,
                    absl::StrFormat("agent connected, %d of %d trainers initialised",
                                    job.nodes.at(NodeId(without_trainers.first())).trainers,
                                    job.settings.local_size()));
  }
  if (without_trainers.count() > 0) {
    return sentence(without_trainers, "agent connected, trainer not initialised");
  }
  return "";
}

void Lifecycle::UpdateForming() {
  JobGeneration& current = job_.current;
  if (current.state != v1::FORMING || job_.nodes.empty()) return;
  if (IsLarge(job_) && IsHeldUp(scope_.fleet, &job_)) {
    job_.forming_changed = true;
    return;
  }
  std::string reason = WaitsFor(job_, scope_.fleet);
  if (reason.empty()) {
    current.state = v1::READY;
    current.reason.clear();
    job_.forming_changed = false;
    for (auto& [rank, node] : job_.nodes) node.idle = false;
    scope_.changes.Store(job_.id);
    scope_.changes.Broadcast(job_.id);
    scope_.changes.Note(event_kind::kGeneration, job_.name,
                        absl::StrFormat("job '%s' is ready: all %d nodes and their trainers are "
                                        "there",
                                        job_.name, job_.nodes.size()));
    return;
  }
  if (reason == current.reason) return;
  current.reason = std::move(reason);
  job_.forming_changed = IsToldLately();
  if (!job_.forming_changed) TellForming();
}

bool Lifecycle::IsToldLately() const {
  return scope_.changes.now() - job_.forming_told < ProgressInterval(job_);
}

void Lifecycle::TellForming() {
  job_.forming_changed = false;
  job_.forming_told = scope_.changes.now();
  scope_.changes.Broadcast(job_.id);
}

void Lifecycle::TellFormingIfDue() {
  if (!job_.forming_changed || IsToldLately()) return;
  JobGeneration& current = job_.current;
  if (current.state != v1::FORMING) return TellForming();
  std::string reason = WaitsFor(job_, scope_.fleet);
  const bool same = reason == current.reason;
  current.reason = std::move(reason);
  if (!IsLarge(job_) || !same) return TellForming();
  job_.forming_changed = false;
  job_.forming_told = scope_.changes.now();
}

void Lifecycle::Fail(std::string reason, ToldFailure told) {
  JobGeneration& current = job_.current;
  if (current.state != v1::READY) return;
  current.state = v1::FAILED;
  current.reason = std::move(reason);
  current.failure = std::move(told);
  scope_.changes.Store(job_.id);
  TellServers();
  scope_.changes.Broadcast(job_.id);
  scope_.changes.Note(event_kind::kFailed, job_.name,
                      absl::StrFormat("job '%s' failed in generation %d: %s", job_.name,
                                      current.number.value(), current.reason));
}

void Lifecycle::TellIfAllDecided() {
  JobGeneration& current = job_.current;
  if (current.state != v1::FAILED || current.all_decided) return;
  if (!job_.AllTakingPartIn(current.decided)) return;
  current.all_decided = true;
  scope_.changes.Broadcast(job_.id);
}

void Lifecycle::StartNextGenerationIfIdle() {
  if (job_.current.state == v1::FORMING || job_.nodes.empty()) return;
  for (const auto& [rank, node] : job_.nodes) {
    if (!node.idle) return;
  }
  StartNextGeneration();
}

void Lifecycle::StartNextGeneration() {
  Begin(Generation(job_.current.number.value() + 1));
  scope_.changes.Store(job_.id);
  TellServers();
  scope_.changes.Note(
      event_kind::kGeneration, job_.name,
      absl::StrFormat("job '%s' begins generation %d", job_.name, job_.current.number.value()));
  UpdateForming();
}

void Lifecycle::Begin(Generation generation) {
  DropTensors();
  job_.Begin(generation, scope_.changes.now());
  for (const auto& [rank, node] : job_.nodes) {
    scope_.changes.Store(job_.id, rank);
    scope_.changes.SendAll(job_.id, rank);
  }
}

void Lifecycle::DropTensors() {
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    for (const auto& [id, owned] : tensor.owned) {
      scope_.fleet.Release(id, owned.accumulator_bytes);
    }
    scope_.changes.DeleteAgreement(job_.id, agreement);
    scope_.changes.DeletePlan(job_.id, agreement);
  }
  scope_.changes.DropUpdatesOf(job_.id);
}

void Lifecycle::TellIdleNodes() {
  if (job_.current.state == v1::FORMING) return;
  for (const auto& [rank, node] : job_.nodes) {
    if (node.idle) scope_.changes.Single(job_.id, rank);
  }
}

void Lifecycle::TellServers() {
  for (const Server* server : EligibleServers(job_, scope_.fleet)) {
    scope_.changes.ReservationFor(server->id, job_.id);
  }
}

}  // namespace addend
