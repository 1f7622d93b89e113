// What the scheduler knows of servers, jobs, nodes and tensors. Plain data; Membership owns all of
// it and keeps its invariants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/plan/assignment.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/node_set.h"
#include "services/scheduler/pace.h"

namespace addend {

// A watch stream of a member, numbered by the caller from 1; 0 is none.
using WatchId = uint64_t;

// The life sign of a member. It is lost when it neither heartbeats nor calls for a whole lease, or
// has no watch stream for that long.
struct Lease {
  absl::Time last_seen;
  WatchId watch = 0;
  bool has_watched = false;
  absl::Time unwatched_since;  // meaningful while watch == 0

  absl::Time Deadline(absl::Duration lease) const {
    const absl::Time silent = last_seen + lease;
    return watch != 0 ? silent : std::min(silent, unwatched_since + lease);
  }
};

struct Server {
  ServerId id;
  v1::RegisterServerRequest info;  // without the proof
  std::string secret_digest;       // of the proof that it brought; empty: none
  Lease lease;
  v1::HeartbeatRequest beat;  // the last
  // Left under its memory limit when all that was sent to it is reserved.
  uint64_t free_bytes = ServerLoad::kUnlimited;
  // Its partitions are to move to others; no new ones are given to it.
  bool draining = false;
  bool drained_told = false;
  // Of its bandwidth, as far as rounds were seen to wait for it: 1 or less.
  double speed = 1;
  // Updates with reservations that it has not answered: update id -> (job, tensor).
  std::map<uint64_t, std::vector<std::pair<JobId, TensorId>>> unanswered;

  bool colocated() const { return !info.colocated_job().empty(); }
  bool Awaits(const std::pair<JobId, TensorId>& asked) const {
    return std::any_of(unanswered.begin(), unanswered.end(), [&asked](const auto& update) {
      return std::find(update.second.begin(), update.second.end(), asked) != update.second.end();
    });
  }
  bool Awaits(JobId job) const {
    return std::any_of(unanswered.begin(), unanswered.end(), [job](const auto& update) {
      return std::any_of(update.second.begin(), update.second.end(),
                         [job](const auto& asked) { return asked.first == job; });
    });
  }
};

struct Node {
  NodeId rank;
  v1::RegisterNodeRequest info;  // without the proof
  Lease lease;
  v1::HeartbeatRequest beat;
  uint32_t trainers = 0;  // that wait for the generation to begin, as the node has reported
  // Nodes that cannot reach its colocated server, and why.
  std::map<NodeId, std::string> accusers;
  absl::Time accused_since;
  // The generation of the token that it was given last, and when that was.
  Generation token_of{0};
  absl::Time token_since = absl::InfinitePast();
  // It has no trainer of the current generation, so it is not affected by that generation's fate
  // and waits for the next one.
  bool idle = false;
};

// What one server holds of one tensor.
struct Owned {
  std::vector<uint32_t> partitions;
  std::vector<uint32_t> shards;
  uint64_t accumulator_bytes = 0;
};

// One tensor of a generation, from the first node's declaration to the last node's undeclaration.
struct Tensor {
  using Stage = v1::AgreementRecord::Stage;

  uint64_t agreement = 0;  // its number in the job
  Stage stage = v1::AgreementRecord::COLLECTING;
  v1::TensorDescriptor descriptor;  // the first declarer's: what the others must agree with
  NodeId first_node;
  NodeSet declared;
  NodeSet undeclared;
  std::optional<v1::TensorDescriptor> differing;  // the first that differs
  NodeId differing_node;
  v1::TensorError error;  // REFUSED

  // RESERVING and PLANNED:
  v1::TensorPlan plan;
  std::map<ServerId, Owned> owned;  // of a partition that moves: both its owners
  // PLANNED: new owners that have not answered yet; the nodes are told when all have.
  std::set<ServerId> recovering;
  // RESERVING:
  std::set<ServerId> awaited;   // have not answered
  std::set<ServerId> refusers;  // of this plan
  std::map<ServerId, uint64_t>
      limit_bytes;  // what earlier refusals leave at a server for this tensor
};

// A planned change: partitions move to other servers, between two rounds each, while the job runs.
// The scheduler of spec/recovery.pml.
struct Change {
  enum class Phase : uint8_t {
    kReserving,    // the owners to be have yet to say that they have room
    kAnnounced,    // the nodes connect to them
    kHandingOver,  // the present owners hand over, and the nodes follow
  };
  PlanVersion version;  // 0: no change is under way
  Phase phase = Phase::kReserving;
  // A former scheduler may have told the nodes already.
  bool restored = false;
  uint64_t number = 0;  // of the announcement: what nodes acknowledge. Never given twice
  std::set<ServerId> awaited;
  std::set<NodeId> connected;
  std::set<NodeId> following;

  bool NodesKnow() const { return restored || phase != Phase::kReserving; }
};

// Why a plan was made.
enum class PlanReason : uint8_t {
  kDeclare,  // tensors
  kJoin,     // servers have come,
  kDrain,    // are to go,
  kLoss,     // are gone,
  kPace,     // or can do less or more than they were taken for
};

// Load of one server by one job.
struct JobLoad {
  uint64_t bytes = 0;
  std::vector<uint64_t> shards;
};

struct Job {
  JobId id;
  std::string name;
  v1::JobSettings settings;
  std::string key;            // what its nodes' tokens are made from
  std::string secret_digest;  // of the proof that its members must bring; empty: none
  Generation generation{1};
  PlanVersion plan_version;
  v1::JobState state = v1::FORMING;
  std::string reason;  // FORMING, FAILED
  uint32_t exit_code = 0;
  std::string failed_kind;
  uint32_t next_tensor = 1;
  uint64_t next_agreement = 1;
  absl::Time created;
  std::optional<absl::Time> empty_since;  // its last node was lost then

  std::map<NodeId, Node> nodes;
  // It has trainers in this generation.
  bool TakesPart(const Node& node) const { return !node.idle && !gone.contains(node.rank); }
  // Incarnations that were lost in this generation. One that comes back still has its trainers.
  std::map<NodeId, uint64_t> lost;
  // Nodes that this generation has to do without, and why: it has failed, or goes on with the
  // others. One that still has trainers is told so; one that has none any more waits for the next.
  std::map<NodeId, std::string> gone;

  std::map<uint64_t, Tensor> tensors;  // by agreement
  // The agreements on a name, oldest first. Only the front one is planned; the others are of nodes
  // that have undeclared the front one and have declared the name anew.
  absl::flat_hash_map<std::string, std::deque<uint64_t>> by_name;
  absl::flat_hash_map<uint32_t, uint64_t> by_tensor_id;
  std::map<ServerId, JobLoad> loads;
  std::set<ServerId> plan_servers;  // own, or have owned, a published partition of this generation

  Pace pace;
  Change change;
  // A change is due, because of this.
  std::optional<PlanReason> rebalance;
  // What nodes are told of the plan in force: the shortest time for a byte, 0 if it is not known.
  double optimal_s_per_byte = 0;
  // Of which plan that is.
  std::pair<PlanVersion, size_t> optimum_of;  // and of how many nodes that are gone

  // The first result with a NaN or an infinity in this generation, as far as nodes have told.
  absl::Time first_nonfinite_at = absl::InfiniteFuture();
  std::string first_nonfinite;
  // Nodes that have not been heard of since: one of them may have had it earlier.
  std::set<NodeId> nonfinite_unheard;

  absl::Time forming_since;
  absl::Time forming_told;  // when nodes were last told whom the job waits for
  bool forming_changed = false;
};

}  // namespace addend
