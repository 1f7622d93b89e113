// The registration of servers and nodes.
#include "services/scheduler/registration.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/auth/secret.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/version.h"
#include "lib/member/protocols.h"
#include "services/scheduler/admission.h"
#include "services/scheduler/lifecycle.h"

namespace addend {
namespace {

// Colocated servers whose job has no nodes yet, all jobs together. Their nodes register right after
// them, so that a further such server shows that somebody makes them up.
constexpr size_t kMaxServersWithoutJob = 1024;

template <typename Request>
bool SameKey(const Request& a, const Request& b) {
  return auth::Same(auth::BytesOf(a.member_key()), auth::BytesOf(b.member_key()));
}

absl::Status NotTheSame(const std::string& host) {
  return absl::PermissionDeniedError(absl::StrFormat(
      "a process on %s tried to register as an existing member with a different key", host));
}

bool BesideTheSameNode(const v1::RegisterServerRequest& a, const v1::RegisterServerRequest& b) {
  return a.colocated_job() == b.colocated_job() && a.colocated_node() == b.colocated_node();
}

// The holder of the rank keeps it until its lease ends. Where the holder may be gone, the agent
// tries again, because UNAVAILABLE is repeated by lib/member:
// - `restored`: the holder is known from the store alone, and the registering agent says that a
//   former scheduler has taken it in. A store that has lost its last writes does not know that
//   agent, but anybody can say so.
// - `silent`: nothing was heard of the holder where a heartbeat was due, as of a machine that has
//   vanished.
absl::Status RankTaken(const std::string& job, uint32_t rank, const std::string& host,
                       bool restored, bool silent) {
  if (restored || silent) {
    return absl::UnavailableError(absl::StrFormat(
        "node rank %d of job '%s' is kept for the agent on %s until its lease ends: %s", rank, job,
        host,
        restored ? "that agent has not come back to this scheduler yet"
                 : "that agent does not answer any more"));
  }
  return WithKind(absl::AlreadyExistsError(absl::StrFormat(
                      "node rank %d of job '%s' is taken by the agent on %s: give every agent "
                      "its own --node-rank, or stop the other one",
                      rank, job, host)),
                  FailureKind::kInvalid);
}

absl::Status AddressTaken(const Server& server) {
  return WithKind(
      absl::AlreadyExistsError(absl::StrFormat(
          "%s already has the address %s: give every summation server its own --listen and "
          "--advertise, or stop the other one",
          NameOf(server), server.info.control_address())),
      FailureKind::kInvalid);
}

v1::RegisterServerRequest WithoutProof(v1::RegisterServerRequest request) {
  request.clear_join_proof();
  request.clear_announced();
  return request;
}

}  // namespace

absl::StatusOr<v1::RegisterServerResponse> Registration::RegisterServer(
    const v1::RegisterServerRequest& request) {
  v1::RegisterServerResponse response;
  response.set_lease_s(absl::ToDoubleSeconds(leases_.length()));
  response.set_now_unix_s(tokens_.NowUnixS());
  if (Server* const known = fleet_.FindProcess(Incarnation(request.incarnation()))) {
    if (!SameKey(known->info, request)) return NotTheSame(request.hostname());
    if (!BesideTheSameNode(known->info, request)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s registers again, beside another node than before: a process stays where it is",
          NameOf(*known)));
    }
    fleet_.Replace(known, WithoutProof(request));
    known->lease.last_seen = changes_.now();
    changes_.Store(known->id);
    response.set_server_id(known->id.value());
    return response;
  }
  ADDEND_RETURN_IF_ERROR(ReplaceServer(request));
  Server server;
  server.id = fleet_.NumberFor(request.former_server_id());
  server.info = WithoutProof(request);
  server.secret_digest = auth::DigestOf(request.join_proof());
  server.lease = Leases::Begun(changes_.now());
  if (request.memory_limit_bytes() != 0) server.free_bytes = request.memory_limit_bytes();
  MakeRoomFor(server);
  response.set_server_id(server.id.value());
  JoinServer(std::move(server));
  return response;
}

void Registration::JoinServer(Server server) {
  changes_.StoreIds();
  changes_.Store(server.id);
  if (server.colocated()) {
    changes_.Say(NameOf(server) + " has joined");  // people are told of its node
  } else {
    changes_.Note(event_kind::kJoined, "", NameOf(server) + " has joined");
    NoteUnfit(server);
  }
  fleet_.Add(std::move(server));
  for (auto& [id, job] : jobs_) Lifecycle(ScopeOf(job)).UpdateForming();
}

// Tells people why a CPU server that has joined stays without work.
void Registration::NoteUnfit(const Server& server) {
  for (const auto& [id, job] : jobs_) {
    if (job.frames.AllSpeakWith(server.info.protocols())) continue;
    changes_.Note(
        event_kind::kRefused, job.name,
        absl::StrFormat("%s speaks %s of the frame protocol, which not all nodes of job "
                        "'%s' speak: it sums nothing of that job",
                        NameOf(server), Describe(FramesOf(server.info.protocols())), job.name));
  }
}

// Members send three heartbeats in a lease.
bool Registration::IsSilent(const Lease& lease) const {
  return changes_.now() - lease.last_seen > leases_.length() / 2;
}

// An earlier start of the same server gives way, if its connection is gone.
absl::Status Registration::ReplaceServer(const v1::RegisterServerRequest& request) {
  const auto give_way = [this](const Server& old) {
    roster_.RemoveServer(old.id, event_kind::kLost, NameOf(old) + " has been started anew");
    return absl::OkStatus();
  };
  if (!request.colocated_job().empty()) {
    const Server* const old =
        fleet_.FindColocated(request.colocated_job(), NodeId(request.colocated_node()),
                             auth::DigestOf(request.join_proof()));
    if (old == nullptr) return absl::OkStatus();
    if (!leases_.Alive(old->lease, changes_.now())) return give_way(*old);
    return RankTaken(request.colocated_job(), request.colocated_node(), old->info.hostname(),
                     request.former_server_id() != 0 && !old->lease.has_watched,
                     IsSilent(old->lease));
  }
  if (request.control_address().empty()) return absl::OkStatus();
  const Server* const old = fleet_.FindCpuServerAt(request.control_address());
  if (old == nullptr) return absl::OkStatus();
  // A server that is not connected has given the address up: two cannot listen there.
  return old->lease.watch != 0 ? AddressTaken(*old) : give_way(*old);
}

// Nothing could be asked of a server that comes before its job: the oldest of these gives way.
void Registration::MakeRoomFor(const Server& server) {
  const auto waits = [this](const Server& other) {
    if (!other.colocated()) return false;
    const Job* const job = jobs_.Find(other.info.colocated_job());
    return job == nullptr || job->nodes.empty();
  };
  if (!waits(server)) return;
  size_t count = 0;
  ServerId oldest;
  for (const auto& [id, other] : fleet_.servers()) {
    if (waits(other) && count++ == 0) oldest = id;
  }
  if (count < kMaxServersWithoutJob) return;
  roster_.RemoveServer(oldest, event_kind::kLost,
                       NameOf(*fleet_.Find(oldest)) + " has given way: its job has not come");
}

absl::StatusOr<v1::RegisterNodeResponse> Registration::RegisterNode(
    const v1::RegisterNodeRequest& request) {
  Job* job = jobs_.Find(request.job());
  if (job != nullptr) {
    // First all checks: an agent that is refused must not end the agent that it would replace.
    ADDEND_RETURN_IF_ERROR(CheckNodeOf(request, *job));
    ADDEND_RETURN_IF_ERROR(ReplaceNode(job, request));
  } else {
    ADDEND_RETURN_IF_ERROR(CheckRoomForJob(request.job(), jobs_));
    job = &CreateJob(request);
  }
  if (job->nodes.empty()) {
    job->settings = request.settings();
    DropStrayServers(*job);
  }
  job->empty_since.reset();
  Node& node = Join(job, request);
  Lifecycle lifecycle(ScopeOf(*job));
  lifecycle.UpdateForming();
  lifecycle.StartNextGenerationIfIdle();

  v1::RegisterNodeResponse response;
  response.set_job_id(job->id.value());
  response.set_generation(job->current.number.value());
  *response.mutable_token() = tokens_.New(changes_.now(), *job, &node);
  response.set_lease_s(absl::ToDoubleSeconds(leases_.length()));
  response.set_now_unix_s(tokens_.NowUnixS());
  return response;
}

Job& Registration::CreateJob(const v1::RegisterNodeRequest& request) {
  jobs_.SkipFormer(request.former_job_id());
  Job& job = jobs_.Create(request.job());
  job.settings = request.settings();
  job.key = rules_.make_key();
  job.secret_digest = auth::DigestOf(request.join_proof());
  job.created = job.current.forming_since = changes_.now();
  changes_.StoreIds();
  changes_.Store(job.id);
  changes_.Note(event_kind::kGeneration, job.name,
                absl::StrFormat("job '%s' begins with %d nodes of %d ranks", job.name,
                                job.settings.num_nodes(), job.settings.local_size()));
  return job;
}

// The node enters the job, or registers again.
Node& Registration::Join(Job* job, const v1::RegisterNodeRequest& request) {
  const NodeId rank(request.node_rank());
  Node& node = job->nodes[rank];
  if (node.info.incarnation() == 0) {
    const auto lost = job->current.lost.find(rank);
    const bool has_trainers =
        request.former_job_id() == job->id.value() ||
        (lost != job->current.lost.end() && lost->second == request.incarnation());
    node.rank = rank;
    node.idle = job->current.state != v1::FORMING && !has_trainers;
    node.lease.unwatched_since = changes_.now();
    changes_.Note(event_kind::kJoined, job->name,
                  absl::StrFormat("node %d (on %s) has joined job '%s'", rank.value(),
                                  request.hostname(), job->name));
  } else {
    job->frames.Remove(node.info.protocols());
  }
  node.info = request;
  node.info.clear_join_proof();
  node.info.clear_recollection();
  job->frames.Add(request.protocols());
  node.lease.last_seen = changes_.now();
  changes_.Store(job->id);
  changes_.Store(job->id, rank);
  return node;
}

// An agent of an earlier incarnation gives way, if its connection is gone.
absl::Status Registration::ReplaceNode(Job* job, const v1::RegisterNodeRequest& request) {
  const Node* const old = job->Find(NodeId(request.node_rank()));
  if (old == nullptr) return absl::OkStatus();
  if (old->info.incarnation() == request.incarnation()) {
    if (!SameKey(old->info, request)) return NotTheSame(request.hostname());
    return absl::OkStatus();
  }
  if (leases_.Alive(old->lease, changes_.now())) {
    const bool was_here = request.former_job_id() == job->id.value();
    return RankTaken(job->name, request.node_rank(), old->info.hostname(),
                     was_here && !old->lease.has_watched, IsSilent(old->lease));
  }
  roster_.RemoveNode(job, old->rank,
                     NameOf(*job, *old) + " was lost: its agent has been started anew", true);
  return absl::OkStatus();
}

// The job's settings and its secret are known with its first node. Servers that came before it and
// do not fit them would count as the job's and never sum for it.
void Registration::DropStrayServers(const Job& job) {
  std::vector<ServerId> strays;
  for (const Server* server : fleet_.ColocatedWith(job.name)) {
    if (server->info.colocated_node() >= job.settings.num_nodes() ||
        server->secret_digest != job.secret_digest) {
      strays.push_back(server->id);
    }
  }
  for (const ServerId id : strays) {
    roster_.RemoveServer(
        id, event_kind::kLost,
        absl::StrFormat("%s has given way: job '%s' has another secret, or no such node",
                        NameOf(*fleet_.Find(id)), job.name));
  }
}

}  // namespace addend
