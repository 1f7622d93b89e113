// A job: its nodes, its present generation and the numbers that it never gives twice. Pure: no I/O,
// clock or thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/failure.h"
#include "lib/base/ids.h"
#include "lib/base/participants.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/agreements.h"
#include "services/scheduler/departures.h"
#include "services/scheduler/frame_ranges.h"
#include "services/scheduler/history.h"
#include "services/scheduler/lease.h"
#include "services/scheduler/pace.h"
#include "services/scheduler/ratio_meter.h"
#include "services/scheduler/standstill.h"

namespace addend {

struct Node {
  NodeId rank;
  v1::RegisterNodeRequest info;  // without the proof
  Lease lease;
  v1::HeartbeatRequest beat;  // the last heartbeat, as far as a status shows it
  uint32_t trainers = 0;      // that wait for the generation to begin, as the node has reported
  // Nodes that cannot reach the colocated server of this node, and why.
  std::map<NodeId, std::string> accusers;
  absl::Time accused_since;
  // The generation and the time of the token that the node got last.
  Generation token_of{0};
  absl::Time token_since = absl::InfinitePast();
  // The node has no trainer of the current generation: that generation's fate does not affect it,
  // and it waits for the next generation.
  bool idle = false;
};

// The node in messages for people: "node 1 (on gpu1)".
std::string NameOf(const Node& node);

// A planned change: partitions move to other servers, between two rounds each, while the job runs.
// The scheduler of spec/recovery.pml.
struct Change {
  enum class Phase : uint8_t {
    kReserving,    // owners-to-be have yet to answer that they have room
    kAnnounced,    // the nodes connect to them
    kHandingOver,  // the present owners hand over, and the nodes follow
  };
  PlanVersion version;  // 0: no change is under way
  Phase phase = Phase::kReserving;
  // A former scheduler may have told the nodes of the moves already.
  bool restored = false;
  // It may even have ordered the hand-overs, because every node may have known of the moves.
  bool may_have_been_ordered = false;
  uint64_t number = 0;  // of the announcement, which nodes acknowledge. Never given twice
  std::set<ServerId> awaited;
  std::set<NodeId> connected;
  std::set<NodeId> following;

  bool under_way() const { return version != PlanVersion(); }
  // The hand-overs may have been ordered, or this scheduler has told the nodes of the moves.
  bool MayBeOrdered() const { return may_have_been_ordered || phase != Phase::kReserving; }
  bool NodesKnow() const { return restored || phase != Phase::kReserving; }
};

// Load of a server by a job.
struct JobLoad {
  uint64_t bytes = 0;
  uint64_t relayed_bytes = 0;  // of partitions of other owners
  std::vector<uint64_t> shards;
};

// What the nodes have been told of the plan, and what they have yet to be told.
struct Told {
  std::set<ServerId> servers;        // all nodes know them
  std::set<ServerId> known_servers;  // some nodes know them, and were not told to forget them
  // Tensors whose servers, or new owners, have been asked; of some all have answered since.
  std::set<uint64_t> unsettled;
  // Tensors of which all have answered, and which nodes have yet to be told of; and when nodes were
  // last told of such.
  std::set<uint64_t> answered;
  absl::Time at = absl::InfinitePast();
};

// The first result with a NaN or an infinity in a generation, as far as nodes have told. A node
// that had received such a result before is not its origin, whatever the times say: they are only
// as exact as heartbeats are fast. If all nodes had, a sum has overflowed, or several nodes pushed
// such values to different partitions at the same time; then the earliest incident counts.
struct FirstNonfinite {
  bool follows = false;
  absl::Time at = absl::InfiniteFuture();
  std::string text;
  // Nodes of which heartbeats are awaited, and how many: the first such result may be theirs. The
  // first heartbeat may have been under way before.
  std::map<NodeId, int> awaited;

  void Take(bool incident_follows, absl::Time when, const std::string& incident) {
    if (!text.empty() && std::pair(follows, at) <= std::pair(incident_follows, when)) return;
    follows = incident_follows;
    at = when;
    text = incident;
  }
  void OnHeartbeat(NodeId node) {
    const auto found = awaited.find(node);
    if (found != awaited.end() && --found->second == 0) awaited.erase(found);
  }
};

// Of tensors that are planned (relays.h). Not stored.
struct Relaying {
  bool ended = false;  // no partition has relays any more
  // Of each node, as measured when the first tensor was declared; empty: unknown.
  std::optional<std::vector<uint32_t>> racks = std::nullopt;
};

// All that ends with a generation. The next generation is a new value.
struct JobGeneration {
  Generation number{1};
  v1::JobState state = v1::FORMING;
  std::string reason;   // FORMING: the nodes that hold it up; FAILED: why
  ToldFailure failure;  // FAILED
  // FAILED: nodes on which no round can end any more. Not stored, because nodes repeat it with
  // every heartbeat.
  std::set<NodeId> decided;
  bool all_decided = false;  // all nodes are told so
  absl::Time forming_since;
  NodeId
      held_up_by;  // FORMING, with all nodes registered: the node that was found to lack something

  // Incarnations of nodes that were lost. A node that returns in the same incarnation still has its
  // trainers.
  std::map<NodeId, uint64_t> lost;
  // Nodes that the generation has to do without, and why: it has failed, or goes on with the other
  // nodes. Such a node is told so while it has trainers; then it waits for the next generation.
  std::map<NodeId, std::string> gone;

  Agreements tensors;
  bool lossy = false;       // a tensor travels in a lossy type, which only newer servers know
  uint64_t partitions = 0;  // of all plans
  // For each set of ranks that tensors have, the load of the servers by these tensors.
  std::map<Participants, std::map<ServerId, JobLoad>> loads;
  std::set<ServerId> plan_servers;  // own, or have owned, a published partition
  Told told;
  Change change;
  std::optional<PlanReason> rebalance;  // a change is due, for this reason
  // When the job comes back to a scheduler without records its servers may follow for a while, in
  // which no tensor is refused for want of a server, whatever servers come and go.
  struct {
    std::optional<absl::Time> until;
    bool awaited = false;  // by a tensor
  } servers_due;
  Relaying relaying;
  Pace pace;
  RatioMeter ratios;
  JobDepartures departures;
  Standstill standstill;
  FirstNonfinite nonfinite;
};

struct Job {
  JobId id;
  std::string name;
  v1::JobSettings settings;
  std::string key;            // the nodes' tokens are made from it
  std::string secret_digest;  // of the proof that members must bring; empty: no proof
  absl::Time created;

  PlanVersion plan_version;
  // The version that the store knew when this scheduler began, and the first version that this
  // scheduler has given (0: no version). Members may know of versions between them, which the store
  // has lost (stale_store.h).
  uint64_t stored_version = 0;
  uint64_t first_given_version = 0;
  // The same of the tensors' numbers. A server may have been asked for memory under a number that
  // the store has lost, so a restored job (0: no number yet) always leaves room.
  uint32_t next_tensor = 1;
  uint32_t stored_next_tensor = 1;
  uint32_t first_given_tensor = 1;
  uint64_t next_agreement = 1;

  std::map<NodeId, Node> nodes;
  FrameRanges frames;                     // of `nodes`
  std::optional<absl::Time> empty_since;  // the last node was lost then
  JobGeneration current;

  // CPU servers that a node of the job could not reach, and until when the job does without them.
  std::map<ServerId, absl::Time> avoided;
  // The part of their bandwidth, between 0 and 1, with which slow CPU servers count for this job,
  // as its rounds were seen to wait for them. Other servers count in full. A job's measurements
  // take nothing from other jobs.
  std::map<ServerId, double> speeds;
  // The shortest time for a byte under the plan in force, as nodes are told; 0: unknown. And the
  // plan, and number of gone nodes, for which it holds.
  double optimal_s_per_byte = 0;
  std::pair<PlanVersion, size_t> optimum_of;

  absl::Time forming_told;       // when nodes were last told of `current.reason`
  bool forming_changed = false;  // they are to be told again

  // Until all have registered, the servers that will share the job's work are not known, and a view
  // of the plan takes as long as the job claims to have nodes.
  bool AllHaveRegistered() const {
    return nodes.size() + current.gone.size() >= settings.num_nodes();
  }
  // The node has trainers in this generation.
  bool TakesPart(const Node& node) const { return !node.idle && !current.gone.contains(node.rank); }
  // `set` has all nodes of the generation that take part in the tensor, but those that are gone.
  bool AllIn(const NodeSet& set, const DeclaredTensor& tensor) const;
  // `set` has all nodes that take part. Other nodes push nothing any more.
  bool AllTakingPartIn(const std::set<NodeId>& set) const;
  // Every node knows changes of the plan's servers; else all are told all servers.
  bool AllTakeServerChanges() const;
  // Every node that takes part has opened a watch since this scheduler began, or is lost.
  bool AllHeard() const;
  uint64_t ranks() const { return uint64_t{settings.num_nodes()} * settings.local_size(); }
  // The ranks of the descriptor. INVALID_ARGUMENT: the job has no such ranks.
  absl::StatusOr<Participants> ParticipantsOf(const v1::TensorDescriptor& tensor) const;
  // Fills in `nodes` of a tensor that is new, or whose participants have changed.
  void CountNodes(DeclaredTensor* tensor) const;
  // A rank of the node is among them.
  bool IsAmong(NodeId node, const Participants& participants) const {
    return participants.HasNode(node, settings.local_size());
  }
  bool Shrinks() const { return settings.on_node_loss() == "shrink"; }
  double SpeedOf(ServerId server) const;
  Node* Find(NodeId rank);

  // Counts the plan version up. Leaves room for the versions of a former scheduler that are not
  // known yet.
  void NextPlanVersion();
  // A number that no tensor of the job has had.
  TensorId NextTensor();
  // Nodes may have the number from a former scheduler, and the store has lost it. Or nobody has
  // given it.
  bool IsForgotten(TensorId tensor) const;
  // Replaces the generation's state. The caller has released the tensors' memory.
  void Begin(Generation generation, absl::Time now);
};

// Plan versions that are left to a former scheduler, whose last versions are not known yet.
inline constexpr uint64_t kVersionsLeft = uint64_t{1} << 20;
// Numbers of tensors: more than a job may have (kMaxTensors).
inline constexpr uint32_t kTensorsLeft = uint32_t{1} << 17;

// The node with the ranks of its trainers: "node 1 (on gpu1, ranks 2..3)".
std::string NameOf(const Job& job, const Node& node);

// All jobs, by number and by name.
class Jobs {
 public:
  using Map = std::map<JobId, Job>;

  // Null if there is no such job.
  Job* Find(JobId id);
  Job* Find(std::string_view name);
  const Job* Find(std::string_view name) const;
  Job& at(JobId id) { return jobs_.at(id); }
  const Job& at(JobId id) const { return jobs_.at(id); }

  // A new job under the next number.
  Job& Create(const std::string& name);
  // A stored job; its number and name are free.
  Job& Restore(Job job);
  void Remove(JobId id);
  // Another job than that of the number gets a higher number. `former`: as a former scheduler gave.
  void SkipFormer(uint64_t former);

  uint64_t next_number() const { return next_; }
  void RestoreNextNumber(uint64_t next) { next_ = next; }
  size_t size() const { return jobs_.size(); }
  Map::iterator begin() { return jobs_.begin(); }
  Map::iterator end() { return jobs_.end(); }
  Map::const_iterator begin() const { return jobs_.begin(); }
  Map::const_iterator end() const { return jobs_.end(); }

 private:
  Map jobs_;
  std::map<std::string, JobId, std::less<>> by_name_;
  uint64_t next_ = 1;
};

}  // namespace addend
