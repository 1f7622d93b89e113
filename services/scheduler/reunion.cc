#include "services/scheduler/reunion.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/auth/job_proof.h"
#include "lib/auth/secret.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/declarations.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/records.h"
#include "services/scheduler/replacement.h"
#include "services/scheduler/restore.h"

namespace addend {
namespace {

// As members have that are known from a store (Leases::Restored).
constexpr int kLeases = 2;
// Jobs at a time: more than a scheduler has (admission.cc).
constexpr size_t kMostJobs = 10'000;
constexpr size_t kMostServers = 1 << 17;
constexpr size_t kMostGivenUp = 1 << 20;
// For messages.
constexpr size_t kMostMissingNamed = 4;

// Members can use up the numbers below these, and no others.
constexpr uint64_t kHighestJob = uint64_t{1} << 61;
constexpr uint32_t kHighestServer = uint32_t{1} << 30;

v1::ServerRecord RecordOf(ServerId id, const v1::RegisterServerRequest& request) {
  v1::ServerRecord record;
  record.set_server_id(id.value());
  *record.mutable_registration() = request;
  record.mutable_registration()->clear_join_proof();
  record.mutable_registration()->clear_announced();
  record.set_secret_digest(auth::DigestOf(request.join_proof()));
  return record;
}

// And not a server that has come meanwhile and got the number of a former server.
bool IsFormer(const Server& server) { return server.info.former_server_id() == server.id.value(); }

bool IsColocated(const v1::RegisterServerRequest& server) {
  return !server.colocated_job().empty();
}

// What the server was told of the job. Null: it does not sum for it, or is no such server: a
// colocated server sums for its own job, whose secret it knows.
const v1::Announced* ToldOf(const ForgottenJob& job, const v1::RegisterServerRequest& server) {
  if (IsColocated(server) && (server.colocated_job() != job.job().name ||
                              auth::DigestOf(server.join_proof()) != job.job().secret_digest)) {
    return nullptr;
  }
  for (const v1::Announced& told : server.announced()) {
    if (told.job_id() == job.id()) return &told;
  }
  return nullptr;
}

}  // namespace

bool Reunion::IsForgotten(uint64_t job, Jobs& jobs) const {
  return job != 0 && job < kHighestJob && !given_up_.contains(job) &&
         jobs.Find(JobId(job)) == nullptr;
}

absl::Status Reunion::Admit(const v1::RegisterNodeRequest& request, const State& state) {
  const uint64_t id = request.former_job_id();
  const bool remembers = request.has_recollection() && IsForgotten(id, state.jobs);
  if (!remembers) {
    // A node that was started anew belongs to the job that its name is kept for.
    const bool expected = std::any_of(told_.begin(), told_.end(), [&request](const auto& entry) {
      return entry.second.job().name == request.job();
    });
    return expected ? EndOrWait(state) : absl::OkStatus();
  }
  for (const auto& [other, told] : told_) {
    if (other != id && told.job().name == request.job()) return absl::OkStatus();
  }
  if (!Dissolve(request, state)) return absl::OkStatus();
  if (!told_.contains(id)) ADDEND_RETURN_IF_ERROR(CheckRoomForJob(request.job(), state.jobs));
  if (told_.size() >= kMostJobs) return absl::OkStatus();
  const bool is_new = !told_.contains(id);
  if (const absl::Status status = told_[id].Take(request); !status.ok()) {
    if (is_new) told_.erase(id);
    return status;
  }
  return EndOrWait(state);
}

// Agents that were started anew may have begun the job again under its name, before any of its
// members came back. While it forms, it gives way. False if a job of that name has begun.
bool Reunion::Dissolve(const v1::RegisterNodeRequest& request, const State& state) {
  Job* const young = state.jobs.Find(request.job());
  if (young == nullptr) return true;
  const bool forms = young->current.state == v1::FORMING &&
                     young->current.number == Generation(1) &&
                     young->secret_digest == auth::DigestOf(request.join_proof());
  if (!forms || young->nodes.empty()) return false;
  std::vector<NodeId> ranks;
  for (const auto& [rank, node] : young->nodes) ranks.push_back(rank);
  Roster roster(&state.fleet, &state.jobs, &state.leases, &state.changes);
  for (const NodeId rank : ranks) {
    roster.RemoveNode(young, rank, "it gives way to the job of that name that runs", false);
  }
  return true;
}

absl::Status Reunion::Admit(const v1::RegisterServerRequest& request, const State& state) {
  const ServerId id(request.former_server_id());
  if (id == ServerId() || id.value() >= kHighestServer || servers_.size() >= kMostServers) {
    return absl::OkStatus();
  }
  const auto forgotten = [&](const v1::Announced& told) {
    return IsForgotten(told.job_id(), state.jobs);
  };
  const bool remembers =
      std::any_of(request.announced().begin(), request.announced().end(), forgotten);
  if (!remembers) return absl::OkStatus();
  servers_[Incarnation(request.incarnation())] = request;
  return EndOrWait(state);
}

absl::Status Reunion::EndOrWait(const State& state) {
  if (!deadline_) {
    deadline_ = state.changes.now() + kLeases * state.leases.length();
    state.changes.Note(event_kind::kGeneration, "",
                       "members of a former scheduler come back, of which this scheduler has no "
                       "records: it goes on from what they know");
  }
  const std::string missing = Missing();
  if (missing.empty()) {
    End(state);
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrFormat(
      "the scheduler has no records of the running jobs, and waits until their members have told "
      "it what they know: still missing are %s",
      missing));
}

// Nodes; once all of them are there, the servers that own partitions, and the nodes of other jobs
// for which servers sum. Empty: all are there.
std::string Reunion::Missing() {
  std::vector<std::string> missing;
  const auto add = [&missing](std::string one) {
    if (missing.size() <= kMostMissingNamed) missing.push_back(std::move(one));
  };
  for (const auto& [id, told] : told_) {
    for (const NodeId rank : told.MissingNodes()) {
      add(absl::StrFormat("node %d of job '%s'", rank.value(), told.job().name));
    }
  }
  if (missing.empty()) {
    std::set<std::pair<uint64_t, ServerId>> there;
    for (const auto& [incarnation, server] : servers_) {
      for (const v1::Announced& one : server.announced()) {
        const auto job = told_.find(one.job_id());
        if (job != told_.end()) {
          if (ToldOf(job->second, server) == nullptr) continue;
          there.emplace(one.job_id(), server.former_server_id());
        } else if (!given_up_.contains(one.job_id())) {
          add(absl::StrFormat("the nodes of job number %d", one.job_id()));
        }
      }
    }
    for (auto& [id, told] : told_) {
      for (const ServerId owner : told.Owners()) {
        if (there.contains({id, owner})) continue;
        add(absl::StrFormat("server %d of job '%s'", owner.value(), told.job().name));
      }
    }
  }
  if (missing.size() > kMostMissingNamed) missing.back() = "others";
  return absl::StrJoin(missing, ", ");
}

void Reunion::Tick(const State& state) {
  if (deadline_ && state.changes.now() >= *deadline_) End(state);
}

void Reunion::End(const State& state) {
  deadline_.reset();
  const std::map<uint64_t, ForgottenJob> told = std::exchange(told_, {});
  const Servers servers = std::exchange(servers_, {});
  // Servers of jobs whose nodes have not come would wait for ever.
  for (const auto& [id, server] : servers) {
    for (const v1::Announced& job : server.announced()) {
      if (!told.contains(job.job_id())) GiveUp(job.job_id());
    }
  }
  const Numbers numbers = NumbersOf(servers, state);
  std::vector<const ForgottenJob*> back;
  for (const auto& [id, job] : told) {
    if (TakeIn(job, servers, numbers, state)) {
      back.push_back(&job);
    } else {
      GiveUp(id);
    }
  }
  for (const ForgottenJob* job : back) GoOn(*job, state);
}

void Reunion::GiveUp(uint64_t job) {
  if (given_up_.size() >= kMostGivenUp) given_up_.clear();
  given_up_.insert(job);
}

// The former number of each, if it is free. A colocated server cannot get another.
Reunion::Numbers Reunion::NumbersOf(const Servers& servers, const State& state) {
  Numbers numbers;
  std::set<ServerId> taken;
  for (const bool colocated : {true, false}) {
    for (const auto& [incarnation, server] : servers) {
      if (IsColocated(server) != colocated) continue;
      const ServerId former(server.former_server_id());
      const bool is_free = !taken.contains(former) &&
                           (colocated ? MakeWay(former, state) : !state.fleet.Find(former));
      if (is_free) state.fleet.KeepNumber(former);
      const ServerId number = is_free ? former : state.fleet.NumberFor(0);
      taken.insert(number);
      numbers[incarnation] = number;
    }
  }
  return numbers;
}

// False if the members' knowledge does not fit together. Its nodes are then refused, with the words
// that any job gets whose number is unknown.
bool Reunion::TakeIn(const ForgottenJob& told, const Servers& servers, const Numbers& numbers,
                     const State& state) {
  if (state.jobs.Find(told.job().name) != nullptr) return false;
  ForgottenJob job = told;
  std::map<ServerId, ServerId> number_of;
  std::set<NodeId> colocated;  // of nodes; anybody may claim to be a second
  std::vector<StoreEntry> entries;
  std::string key;
  for (const auto& [incarnation, server] : servers) {
    const v1::Announced* const one = ToldOf(told, server);
    if (one == nullptr) continue;
    if (IsColocated(server) && !colocated.emplace(server.colocated_node()).second) continue;
    const ServerId id = numbers.at(incarnation);
    if (!number_of.emplace(server.former_server_id(), id).second) continue;
    job.TakeVersion(one->generation(), one->plan_version());
    entries.emplace_back(records::ServerKey(id.value()), RecordOf(id, server).SerializeAsString());
    // Other servers may sum for this job, but do not choose its key.
    if (IsColocated(server) && one->key().size() == auth::kSecretBytes) key = one->key();
  }
  std::optional<ServerId> lost;  // a number that nobody has
  job.NumberOwners([&](ServerId owner) {
    const auto known = number_of.find(owner);
    if (known != number_of.end()) return known->second;
    if (!lost) lost = state.fleet.NumberFor(0);
    return *lost;
  });
  // Links stay and servers keep their sums where the key is the former.
  if (key.empty()) key = make_key_();
  for (StoreEntry& entry : job.Records(key, state.changes.now())) {
    entries.push_back(std::move(entry));
  }
  v1::IdsRecord ids;
  ids.set_next_job_id(kHighestJob);
  ids.set_next_server_id(kHighestServer);
  entries.emplace_back(records::kIds, ids.SerializeAsString());
  Fleet fleet;
  Jobs jobs;
  const absl::Status status =
      RestoreRecords(state.changes.now(), state.leases, entries, &fleet, &jobs);
  if (!status.ok()) {
    state.changes.Note(event_kind::kFailed, told.job().name,
                       absl::StrFormat("job '%s' cannot go on from what its members know: %s",
                                       told.job().name, Message(status)));
    return false;
  }
  for (auto& [id, server] : fleet.servers()) {
    if (state.fleet.Find(id) != nullptr) continue;
    // An agent that was started anew has taken the former server's place.
    if (server.colocated() &&
        state.fleet.FindColocated(server.info.colocated_job(), NodeId(server.info.colocated_node()),
                                  server.secret_digest) != nullptr) {
      continue;
    }
    state.changes.Store(id);
    const uint64_t limit = server.info.memory_limit_bytes();
    if (limit != 0) server.free_bytes = limit;  // the jobs' reservations follow
    state.fleet.Add(std::move(server));
  }
  Job& restored = state.jobs.Restore(std::move(jobs.at(JobId(told.id()))));
  state.jobs.SkipFormer(told.id());
  for (const auto& [agreement, tensor] : restored.current.tensors) {
    for (const auto& [id, owned] : tensor.owned) state.fleet.Reserve(id, owned.accumulator_bytes);
    state.changes.StoreAgreement(restored.id, agreement);
    state.changes.StorePlan(restored.id, agreement);
  }
  for (const auto& [rank, node] : restored.nodes) state.changes.Store(restored.id, rank);
  state.changes.Store(restored.id);
  state.changes.StoreIds();
  return true;
}

// Frees a number that a server got which has come meanwhile and sums nothing yet: it gets another
// when it registers again.
bool Reunion::MakeWay(ServerId id, const State& state) {
  const Server* const server = state.fleet.Find(id);
  if (server == nullptr) return true;
  const bool is_used = std::any_of(state.jobs.begin(), state.jobs.end(), [id](const auto& entry) {
    return std::any_of(entry.second.current.tensors.begin(), entry.second.current.tensors.end(),
                       [id](const auto& tensor) { return tensor.second.owned.contains(id); });
  });
  if (IsFormer(*server) || is_used) return false;
  Roster(&state.fleet, &state.jobs, &state.leases, &state.changes)
      .RemoveServer(id, event_kind::kLost,
                    NameOf(*server) + " gives way: a server of a running job has its number");
  return true;
}

void Reunion::GoOn(const ForgottenJob& told, const State& state) {
  Job& job = state.jobs.at(JobId(told.id()));
  const JobScope scope{job, state.fleet, state.changes, state.jobs.size()};
  Roster roster(&state.fleet, &state.jobs, &state.leases, &state.changes);
  state.changes.Note(event_kind::kGeneration, job.name,
                     absl::StrFormat("job '%s' goes on in generation %d from what its members know",
                                     job.name, job.current.number.value()));
  Lifecycle lifecycle(scope);
  // The generation may have begun all the same: a node that waits for the next one is told that
  // this one is FORMING, and the nodes that were in it may not have come.
  if (job.current.state == v1::FORMING) return lifecycle.StartNextGeneration();
  roster.LoseForgotten();
  for (const NodeId rank : told.MissingNodes()) {
    roster.LoseNode(&job, rank,
                    absl::StrFormat("node %d of job '%s' was lost: it has not come back to a new "
                                    "scheduler",
                                    rank.value(), job.name));
  }
  job.current.servers_due.until = state.changes.now() + kLeases * state.leases.length();
  Replacement(scope).RecoverAll("where the scheduler has them from its members");
  Declarations declarations(scope);
  declarations.GoOnWithout();
  declarations.Plan();
  lifecycle.StartNextGenerationIfIdle();
}

}  // namespace addend
