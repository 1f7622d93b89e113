// A job on a shard: its partitions, and the nodes that are connected. Takes the orders of the
// scheduler and the frames of the nodes, and passes them on to the partitions that they name.
// Belongs to the shard's thread.
//
// The failure of the generation and the loss of a node reach every partition. That takes a while
// for a job with very many partitions, so JobShard goes through them a few at a time, at the end of
// the thread's turns. In between the orders hold already: no round of a failed generation is
// sealed, and a lost node is not connected.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/auth/token.h"
#include "lib/summation/job_state.h"
#include "lib/summation/latest_partitions.h"
#include "lib/summation/node_port.h"
#include "lib/summation/relayed_partitions.h"
#include "lib/summation/shard_context.h"
#include "lib/summation/summed_partitions.h"

namespace addend {

class JobShard {
 public:
  // The partitions that a failure or a loss reaches in one turn of the thread.
  static constexpr size_t kAtOnce = 64;

  // `context` outlives this object. `totals`: of the job's former generations.
  JobShard(const JobSpec& spec, std::shared_ptr<JobMemory> memory, JobTotals totals,
           ShardContext* context);

  // ---- orders of the scheduler ----
  // Same generation and key. A job with another key is another job, though it has the number (its
  // scheduler has lost writes).
  bool IsSameGeneration(const JobSpec& spec) const;
  // The failure of the generation, and newly lost nodes.
  void Update(const JobSpec& spec);
  void Add(std::shared_ptr<Partition> partition);
  void Add(std::shared_ptr<LatestPartition> partition);
  void Add(std::shared_ptr<RelayedPartition> partition);
  void TakeOver(PartitionId id, PlanVersion version, bool handed_over);
  void HandOver(TensorId tensor, const std::set<uint32_t>& partitions, PlanVersion next);
  // Closes the links that are receiving into these partitions.
  void Drop(TensorId tensor, const std::set<uint32_t>& partitions);
  void DropRelayed(TensorId tensor, const std::set<uint32_t>& partitions);
  // Limits the bytes on their way through each link of the job to about `bytes`; and those of sums
  // to other servers, together, to about `sums`.
  void LimitInFlight(size_t bytes, size_t sums);
  // Drops early contributions and copies above the job's share of the memory. Early contributions
  // are requested again at their turn.
  void TrimEarly();
  // Closes all links of the job and drops all partitions. Nothing may follow.
  void End(const absl::Status& why);

  // ---- nodes ----
  const std::string& key() const { return state_.spec.key; }
  size_t in_flight_bytes() const { return in_flight_bytes_; }
  // PERMISSION_DENIED: the claim does not name a node of this generation that takes part, or a
  // server that sends sums. Else the sender is connected through `node` until it leaves; its former
  // link is closed. `encrypt`: it has asked for encryption of this link.
  absl::Status Admit(NodePort* node, const auth::Claim& claim, bool encrypt);
  // The link of a connected node is closed.
  void OnLeft(NodePort* node, const absl::Status& why);
  // As Sink::Place() and Sink::OnFrame(), for the frames of a connected node.
  absl::StatusOr<MutableBytes> Place(NodePort* node, const FrameHeader& header);
  absl::Status OnFrame(NodePort* node, const FrameHeader& header, Payload payload);

  // ---- numbers ----
  // The result of an audit of this job's sums. Returns true for a mismatch.
  bool NoteAudit(const Auditor::Finding& finding);
  const std::string& name() const { return state_.spec.name; }
  const JobTotals& totals() const { return state_.totals; }
  // Appends the rounds that wait for nodes, until `out` has `limit` entries.
  void RollCall(size_t limit, std::vector<OpenRoundInfo>* out);
  void AddNames(std::map<TensorId, std::string>* names) const { summed_.AddNames(names); }

 private:
  // A failure and losses that have not reached all partitions; `summed` and `latest` are left.
  struct Walk {
    bool failed = false;
    std::vector<NodeId> lost;
    std::vector<PartitionId> summed;
    std::vector<PartitionId> latest;
  };
  static bool IsAboutLatest(const FrameHeader& header);
  static absl::Status CheckRelay(const FrameHeader& header);
  bool IsRelayed(const FrameHeader& header) const;
  absl::Status CheckClaim(const auth::Claim& claim) const;
  absl::StatusOr<MutableBytes> PlaceAudit(NodePort* node, const FrameHeader& header);
  absl::Status OnAudit(NodePort* node, const FrameHeader& header, Payload payload);
  bool CanAudit() const { return state_.spec.lost.empty() && !state_.spec.failed; }
  void Disconnect(NodeId node);
  bool BeginWalk();
  void Continue();
  void Reach(const Walk& walk, PartitionId id, bool summed);

  ShardContext* const context_;
  JobState state_;
  size_t in_flight_bytes_ = SendLimits::kUnlimited;  // of every link
  SummedPartitions summed_;
  LatestPartitions latest_;
  std::unique_ptr<RelayedPartitions> relayed_;  // null: nothing is relayed
  bool encrypts_ = false;                       // a node has asked for encryption of its link
  std::optional<Walk> walk_;                    // under way
  Walk next_;                                   // without ids: the changes since `walk_` began
  // Expires with this object, before a deferred Continue().
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend
