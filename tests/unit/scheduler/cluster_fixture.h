// A cluster that exists in a Membership only: members that keep their leases, take in updates like
// real members, and answer reservations. Time passes only by Pass().
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/failure.h"
#include "lib/member/announced.h"
#include "lib/member/node_memory.h"
#include "lib/member/report.h"
#include "services/scheduler/membership.h"
#include "services/scheduler/store/memory_store.h"

namespace addend {

// Of every member of the tests.
inline const std::string kKey(32, 'k');

class FakeServer {
 public:
  v1::RegisterServerRequest info;
  uint32_t id = 0;
  WatchId watch = 0;                        // 0: not connected
  bool silent = false;                      // sends no heartbeats
  bool answers = true;                      // acknowledges reservations at once
  uint64_t capacity = ~uint64_t{0};         // its real memory, whatever it has told the scheduler
  size_t capacity_for_relays = ~size_t{0};  // partitions that it would relay

  struct HeldJob {
    uint32_t generation = 0;
    uint32_t num_nodes = 0;
    std::map<uint32_t, v1::TensorReservation> tensors;
    std::map<uint32_t, v1::RelayReservation> relays;
    std::map<uint32_t, v1::ServerInfo> peers;
    bool failed = false;
    std::vector<uint32_t> lost_nodes;
  };
  std::map<uint64_t, HeldJob> jobs;
  // Plan versions under which it has handed over: (tensor, partition) -> version.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> handed_over;
  bool drained = false;
  internal::ServerAnnounced announced;
  std::vector<v1::ServerUpdate> updates;

  uint64_t held_bytes() const;
  v1::MemberId member() const;
  // Like a summation server; the answer still lacks the member's id.
  v1::AckReservationRequest Take(const v1::ServerUpdate& update);
};

class FakeNode {
 public:
  v1::RegisterNodeRequest info;
  uint64_t job_id = 0;
  WatchId watch = 0;
  bool silent = false;
  uint32_t trainers = 1;  // that wait as soon as a generation forms
  bool trainers_said = false;
  std::map<uint32_t, double> busy;  // by server: the part of the time in which it is at work
  std::map<uint32_t, v1::ServerPace> paces;  // the times that follow from `busy`
  bool acks = true;  // says that it is connected to owners to be, and that it follows them

  // From the updates.
  uint32_t generation = 0;
  v1::JobState state = v1::FORMING;
  std::string reason;
  std::string failed_kind;
  uint32_t exit_code = 0;
  uint64_t plan_version = 0;
  uint64_t change = 0;
  bool connected_said = false;
  bool following_said = false;
  std::map<uint32_t, v1::ServerInfo> servers;
  std::map<std::string, v1::TensorPlan> plans;
  std::map<std::string, v1::TensorError> errors;
  std::vector<v1::NodeUpdate> updates;
  internal::NodeAnnounced announced;
  mutable internal::NodeMemory memory;

  v1::MemberId member() const;
  void Take(const v1::NodeUpdate& update);
};

class ClusterTest : public testing::Test {
 protected:
  ClusterTest();

  // Registers and watches. A status other than OK fails the test.
  FakeServer& AddCpuServer(uint64_t memory_limit = 0, double bandwidth_bps = 0,
                           uint64_t job_memory_limit = 0);
  FakeNode& AddNode(const std::string& job, uint32_t rank, uint32_t num_nodes,
                    bool colocated = true);
  std::vector<FakeNode*> AddJob(const std::string& job, uint32_t num_nodes, bool colocated = true);
  v1::RegisterNodeRequest NodeRequest(const std::string& job, uint32_t rank, uint32_t num_nodes);
  absl::Status Register(FakeNode* node);
  absl::Status Register(FakeServer* server);
  void Watch(FakeNode* node);
  void Watch(FakeServer* server);
  FakeServer* ServerOf(const FakeNode& node);

  static v1::TensorDescriptor Tensor(const std::string& name, std::vector<int64_t> shape,
                                     v1::DType dtype = v1::FLOAT32);
  // The node knows the tensors by `number` and the numbers after it.
  void Declare(const FakeNode& node, const std::vector<v1::TensorDescriptor>& tensors,
               uint32_t number = 1);
  void DeclareAll(const std::vector<FakeNode*>& nodes,
                  const std::vector<v1::TensorDescriptor>& tensors);
  void Undeclare(const FakeNode& node, const std::string& name);
  void Idle(const FakeNode& node);
  void Fail(const FakeNode& node, const std::string& reason,
            std::optional<FailureKind> kind = std::nullopt);
  void Leave(FakeNode* node);
  void Leave(FakeServer* server);
  // Its process is killed: the stream breaks, the heartbeats end.
  void Kill(FakeNode* node);
  void Kill(FakeServer* server);
  void ReportLost(const FakeNode& node, const FakeServer& server);
  void ReportReached(const FakeNode& node, const FakeServer& server);
  // Answers an update that an `answers == false` server has got, the last by default.
  void Answer(FakeServer* server);

  void ReportTrainers(const FakeNode& node);
  void AckChange(const FakeNode& node, bool following);
  absl::Status Drain(const FakeServer& server);
  // A heartbeat says that it cannot send sums of the job to the other server.
  void ReportTrouble(const FakeServer& server, uint64_t job, const FakeServer& other);
  // Nodes do their steps of a planned change until nothing changes any more.
  void SayTrainers();
  void FollowMoves();

  // Every partition of a plan is held by exactly the living server and shard that the plan says.
  void ExpectHeld(const v1::TensorPlan& plan, uint64_t job_id);

  // In steps of a heartbeat.
  void Pass(absl::Duration duration);
  // The scheduler is killed and started anew on the same store; members watch again.
  void Restart();
  // The same with an empty store. No member has come back yet.
  void RestartWithoutStore();
  // Registers again with all that the member knows, and watches if it is let in.
  absl::Status ComeBack(FakeNode* node);
  absl::Status ComeBack(FakeServer* server);
  // All that are not silent come until they are let in, for `limit` at most.
  void AllComeBack(absl::Duration limit = absl::Seconds(1));
  v1::GetStatusResponse Status() { return membership_->GetStatus(now_, {}); }

  // Stores and delivers.
  void Apply(Decision decision);
  std::string Reasons() const;

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  MemoryStore store_;
  std::unique_ptr<Membership> membership_;
  std::vector<std::unique_ptr<FakeServer>> servers_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  std::vector<std::string> reasons_;
  uint64_t partition_bytes_ = 4096;
  std::string on_node_loss_ = "fail";
  std::string servers_digest_;
  bool new_servers_answer_ = true;
  v1::Protocols speaks_;  // of CPU servers; empty: they name no versions
  v1::Protocols colocated_speaks_;
  std::vector<std::string> places_;  // of nodes, by rank; empty: without places
  uint64_t next_ = 1;                // watches and incarnations
  uint64_t first_job_ = 1;
  void Start();

 private:
  void ReportServer(const FakeNode& node, Report report);
  void Deliver(const Decision& decision);
  bool HandedOver(const v1::TensorPlan& plan) const;
  bool following_ = false;
};

}  // namespace addend
