// The registry of summation servers, with the ledger of their memory. Pure: no I/O, clock or
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/plan/assignment.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/given_numbers.h"
#include "services/scheduler/lease.h"

namespace addend {

struct Server {
  ServerId id;
  v1::RegisterServerRequest info;  // without the proof
  std::string secret_digest;       // of the proof; empty: the server brought no proof
  Lease lease;
  v1::HeartbeatRequest beat;  // the last heartbeat, as far as a status shows it
  // Bytes left under the memory limit when all that was sent to the server is reserved.
  uint64_t free_bytes = ServerLoad::kUnlimited;
  // The latest report of a node, of any job, that cannot reach the server, and its time.
  std::string accusation;
  absl::Time accused_at = absl::InfinitePast();
  // The server's partitions are to move to other servers, and it gets no new ones.
  bool draining = false;
  bool drained_told = false;
  // Updates with reservations that await the server's answer: update id -> (job, tensor).
  std::map<uint64_t, std::vector<std::pair<JobId, TensorId>>> unanswered;

  bool colocated() const { return !info.colocated_job().empty(); }
  // Whether a reservation of this tensor, or of any tensor of the job, awaits the server's answer.
  bool Owes(const std::pair<JobId, TensorId>& asked) const;
  bool Owes(JobId job) const;
};

// The server in messages for people: "server 3 (on host)".
std::string NameOf(const Server& server);

class Fleet {
 public:
  // Null if there is no such server.
  Server* Find(ServerId id);
  const Server* Find(ServerId id) const;
  // The server of the process with this incarnation; null if there is none.
  Server* FindProcess(Incarnation incarnation);
  // The CPU server that registered first of those at this control address; null if there is none.
  const Server* FindCpuServerAt(const std::string& control_address) const;
  // The colocated server of a node. `digest`: of the job's proof, so that a server without that
  // proof takes no other server's place.
  const Server* FindColocated(const std::string& job, NodeId node, const std::string& digest) const;
  // All that registered as colocated with nodes of the job, by node, whatever their proof.
  std::vector<const Server*> ColocatedWith(const std::string& job) const;

  void Add(Server server);
  Server Remove(ServerId id);
  // The server's partitions are to move to other servers from now on.
  void Drain(Server* server);
  // A process registers again.
  void Replace(Server* server, v1::RegisterServerRequest info);

  // A new number. `former`: the number that a former scheduler gave to this server (0: unknown),
  // which the server keeps if the store had lost it and it is not in use.
  ServerId NumberFor(uint32_t former);
  // Nobody else gets the number, which a former scheduler has given.
  void KeepNumber(ServerId id);
  // The next number to give, as stored.
  uint32_t next_number() const { return next_; }
  void RestoreNextNumber(uint32_t next) { next_ = first_ = next; }

  // The memory ledger. No effect on a server that is gone or has no limit.
  void Reserve(ServerId id, uint64_t bytes);
  void Release(ServerId id, uint64_t bytes);

  std::map<ServerId, Server>& servers() { return servers_; }
  const std::map<ServerId, Server>& servers() const { return servers_; }
  const std::set<ServerId>& cpu_servers() const { return cpu_servers_; }
  const std::set<ServerId>& draining() const { return draining_; }

 private:
  // (job, node, digest of the proof)
  using Colocation = std::tuple<std::string, NodeId, std::string>;
  static Colocation ColocationOf(const Server& server);
  void Enter(const Server& server);
  void Strike(const Server& server);

  std::map<ServerId, Server> servers_;
  // Indices of servers_. Every job looks through all CPU servers.
  std::map<Colocation, ServerId, std::less<>> colocated_;
  std::set<ServerId> cpu_servers_;
  std::set<ServerId> draining_;
  std::set<std::pair<uint64_t, ServerId>> processes_;          // by incarnation
  std::set<std::pair<std::string, ServerId>> cpu_servers_at_;  // by control address
  uint32_t next_ = 1;
  // Numbers from first_ on are unknown to the store: this process or a former scheduler gave them.
  uint32_t first_ = 1;
  GivenNumbers given_;  // by this process
};

}  // namespace addend
