// A simulated cluster: hosts with the real engines, agents and clients, and the scheduler.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types.h"
#include "lib/client/operations.h"
#include "lib/client/reader.h"
#include "lib/member/node_memory.h"
#include "lib/server/summation_member.h"
#include "lib/summation/engine.h"
#include "services/worker_agent/agent.h"
#include "tests/simulation/control.h"
#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/process.h"

namespace addend::simulation {

class Cluster;

// Of every job: longer than the faults of a run together, under which a round may stay open.
constexpr absl::Duration kStallTimeout = absl::Minutes(20);

// A node is told of owners that change.
struct OwnersChange {
  std::string host;  // of the node
  // The present and next owners of the partitions that move.
  std::vector<std::pair<uint32_t, uint32_t>> moves;
  std::vector<uint32_t> servers;  // those of `moves`; without moves, all owners
};

// A summation server, of a CPU machine or of an agent, as a member of the scheduler.
class ServerMembership {
 public:
  ServerMembership(Cluster* cluster, std::shared_ptr<Process> process, Engine* engine,
                   v1::RegisterServerRequest request, std::function<void()> on_registered,
                   std::function<void(const absl::Status&)> on_fatal);
  void Start() { session_->Start(); }
  void Leave() { session_->Leave(); }
  void Drain();
  bool drained() const { return drained_; }
  uint32_t id() const { return session_->id().server_id(); }
  // All that it has had: links under a former number may still be open.
  const std::set<uint32_t>& ids() const { return ids_; }

 private:
  absl::StatusOr<v1::MemberId> Register(Scheduler* scheduler, const v1::MemberId* former,
                                        absl::Duration* lease);
  void OnUpdate(const v1::ServerUpdate& update);

  Cluster* const cluster_;
  const std::shared_ptr<Process> process_;
  Engine* const engine_;
  v1::RegisterServerRequest request_;
  internal::ServerAnnounced announced_;
  std::shared_ptr<Session> session_;
  std::set<uint32_t> ids_;
  bool drained_ = false;
};

class CpuServer {
 public:
  CpuServer(Cluster* cluster, std::string name, std::string host);
  ~CpuServer();
  const std::shared_ptr<Process>& process() const { return process_; }
  Engine* engine() const { return engine_.get(); }
  uint32_t id() const { return member_->id(); }
  const std::set<uint32_t>& ids() const { return member_->ids(); }
  // SIGTERM: drains, and ends when the scheduler has moved its partitions.
  void Drain();
  bool ended() const { return ended_; }  // the process has ended by itself

 private:
  void EndWhenDrained();

  const std::shared_ptr<Process> process_;
  SimMachine machine_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ServerMembership> member_;
  bool draining_ = false;
  bool ended_ = false;
};

// The two ends of a trainer's socket.
struct TrainerSocket;

class AgentHost {
 public:
  AgentHost(Cluster* cluster, const JobPlan* job, uint32_t node);
  ~AgentHost();
  const std::shared_ptr<Process>& process() const { return process_; }
  Agent* agent() const { return agent_.get(); }
  Engine* engine() const { return engine_.get(); }
  uint32_t server_id() const { return server_ == nullptr ? 0 : server_->id(); }
  const std::set<uint32_t>& server_ids() const { return server_->ids(); }
  // This node has been told that the server owns the partition, or will.
  bool IsNamed(const std::set<uint32_t>& server, PartitionId partition) const;
  // The job and its generation: no two generations of a run have both numbers.
  // The generation has failed on this node, and not for lack of an owner's word within a lease.
  bool OwnersHaveDecided(const GenerationId& generation) const;
  std::pair<uint64_t, uint32_t> generation() const {
    return {registration_.job_id(), agent_->Snapshot().generation()};
  }
  // A trainer connects. Null: nobody listens.
  std::shared_ptr<TrainerSocket> Accept();
  bool failed() const { return failed_; }  // the process has ended by itself

 private:
  class Door;
  class Reports;
  void JoinAsNode();
  void Fail(const absl::Status& why);
  absl::StatusOr<v1::MemberId> Register(Scheduler* scheduler, const v1::MemberId* former,
                                        absl::Duration* lease);
  void OnUpdate(const v1::NodeUpdate& update);

  Cluster* const cluster_;
  const JobPlan* const job_;
  const uint32_t node_;
  const std::shared_ptr<Process> process_;
  const Incarnation incarnation_;
  const std::string key_;
  SimMachine machine_;
  std::shared_ptr<InprocNetwork> inproc_;
  Door* door_ = nullptr;  // owned by the agent
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ServerMembership> server_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<Reports> reports_;
  v1::RegisterNodeResponse registration_;
  internal::NodeAnnounced announced_;
  internal::NodeMemory memory_;
  bool failed_ = false;
  // By partition, all servers of which the node has been told.
  std::map<std::pair<uint32_t, uint32_t>, std::set<uint32_t>> named_;
  // The last generation that has failed, by the scheduler's word, or by this node's own.
  struct Failure {
    uint32_t generation = 0;
    absl::Time at;
  };
  Failure told_, own_;
};

// A trainer, a rank: joins its job again and again until the cluster says stop.
class Rank {
 public:
  Rank(Cluster* cluster, const JobPlan* job, uint32_t node, uint32_t local_rank);
  ~Rank();
  const std::shared_ptr<Process>& process() const { return process_; }
  uint32_t rank() const;
  const JobPlan* job() const { return job_; }
  GenerationId generation() const { return generation_; }
  bool trains() const { return state_ == State::kRunning; }
  bool done() const { return state_ == State::kDone; }
  // Ends its training while the others go on; it comes back a while later.
  void LeaveEarly();
  std::string Describe() const;

 private:
  struct Client;
  struct Step;
  enum class State { kAway, kJoining, kDeclaring, kRunning, kDone };

  void Connect();
  void ConnectLater();
  void OnReadable();
  void OnJoinMessage(const client::Packet& packet);
  void Joined();
  void DeclareOdd();
  void CheckOdd();
  void Advance();
  void PushStep();
  bool DeclareAnew();
  bool TakeStep();
  void Fail(const client::Error& error);
  std::vector<uint64_t> CompleteRounds() const;
  void Leave();
  void Disconnect();

  Cluster* const cluster_;
  const JobPlan* const job_;
  const uint32_t node_;
  const uint32_t local_rank_;
  const std::shared_ptr<Process> process_;
  State state_ = State::kAway;
  GenerationId generation_;
  uint64_t steps_ = 0;        // completed
  uint64_t pushed_ = 0;       // begun
  uint64_t last_step_ = 0;    // all ranks leave after it ...
  bool joins_again_ = false;  // ... and come back
  bool pausing_ = false;
  uint64_t declared_at_ = 0;                   // the step for which a tensor was declared anew ...
  std::shared_ptr<client::Tensor> declaring_;  // ... or is
  std::shared_ptr<TrainerSocket> socket_;
  std::unique_ptr<Client> client_;
  std::deque<std::unique_ptr<Step>> open_;
};

class Cluster {
 public:
  struct Plan {
    Path path;
    absl::Duration lease = absl::Seconds(5);
    std::vector<JobPlan> jobs;
    uint32_t cpu_servers = 0;
    uint32_t shards = 1;
    uint64_t memory_limit_bytes = 0;
    // CPU servers may have less memory than the limit that they name.
    bool promises_too_much = false;
    double clock_drift = 0;  // at most, of every process
    // Of every host, from which the limits of the bytes on their way follow; 0: unknown.
    double bandwidth_bps = 0;
    // Of payloads, by each process.
    enum class Encodings { kNever, kAlways, kMixed } encodings = Encodings::kMixed;
  };
  Cluster(World* world, Plan plan);
  ~Cluster();

  World* world() const { return world_; }
  Network* network() { return &network_; }
  Oracle* oracle() { return &oracle_; }
  SimStore* store() { return &store_; }
  SchedulerPlace* place() { return &place_; }
  const Plan& plan() const { return plan_; }
  std::shared_ptr<Process> NewProcess(const std::string& name, const std::string& host);
  // The --wire-encoding of the next process.
  WireEncoding DrawEncoding();

  // ---- members, by number ----
  std::vector<std::unique_ptr<CpuServer>>& servers() { return servers_; }
  // Null: the agent is dead.
  std::unique_ptr<AgentHost>& agent(const JobPlan* job, uint32_t node);
  std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }
  void StartScheduler();
  void KillScheduler(bool silent);
  // The leading scheduler stands still for so long; another follows meanwhile.
  void ChangeLeader(absl::Duration pause);
  void StartServer();
  void KillServer(size_t index, bool silent);
  void StartAgent(const JobPlan* job, uint32_t node);
  void KillAgent(const JobPlan* job, uint32_t node, bool silent);
  void KillRank(size_t index);

  // Objects of a dead process, destroyed outside of their own calls.
  template <typename T>
  void Bury(std::unique_ptr<T> object) {
    world_->After(absl::ZeroDuration(),
                  [object = std::shared_ptr<T>(std::move(object))]() mutable { object.reset(); });
  }
  // All ranks stop after the step that they agree on.
  bool stop = false;
  std::function<void(const OwnersChange& change)> on_change;
  // The process of a server, by its number; null if it is dead.
  std::shared_ptr<Process> ProcessOf(uint32_t server);

 private:
  World* const world_;
  const Plan plan_;
  Network network_;
  Oracle oracle_;
  SimStore store_;
  SchedulerPlace place_{.host = "scheduler"};
  std::list<std::shared_ptr<Scheduler>> former_;  // leaders that another has followed
  std::vector<std::unique_ptr<CpuServer>> servers_;
  std::map<std::pair<const JobPlan*, uint32_t>, std::unique_ptr<AgentHost>> agents_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint32_t names_ = 0;
};

}  // namespace addend::simulation
