// A partition of a tensor in asynchronous mode (ReduceOp::kAccumulate) on its owner: the latest
// value, to which every contribution is added when it arrives, and the version vector of the value
// (the stamp). Belongs to a shard's thread. Knows no link.
//
// A node's rounds are its own: it contributes round r + 1 when it has the answer to round r, the
// value as it was when r had been added. So a node has a single contribution under way at most,
// which it keeps. That makes the nodes' copies sufficient when the owner is lost: the most recent
// copy includes every contribution whose answer any node has.
//
// Invariants
//  1. A contribution is added once: the stamp of a copy names the contributions in it.
//  2. Nothing is added before every remaining node has reported the copy that it holds.
//  3. A value that is being sent never changes: the next value is made in other memory while it is
//     lent.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/memory/arena.h"
#include "lib/summation/job_memory.h"
#include "lib/summation/partition_spec.h"
#include "lib/summation/value_copies.h"
#include "lib/wire/stamp.h"

namespace addend {

class LatestPartition {
 public:
  enum class State : uint8_t {
    kOpen,        // contributions are added
    kClosed,      // another server is the owner: kept until every node follows it
    kRecovering,  // waits for the nodes' reports
    kRestoring,   // waits for the most recent copy
  };

  // The owner from the first round on, unless spec.version names a plan: then another server was
  // the owner before, and the nodes report the copies that they hold. `memory` pays for the copies
  // above the reserved copies, for as long as they are lent; null: they are not limited.
  explicit LatestPartition(PartitionSpec spec, std::shared_ptr<JobMemory> memory = nullptr);
  ~LatestPartition() { ForgetStamps(); }
  LatestPartition(const LatestPartition&) = delete;
  LatestPartition& operator=(const LatestPartition&) = delete;

  const PartitionSpec& spec() const { return spec_; }
  size_t payload_bytes() const { return spec_.payload_bytes(); }
  State state() const { return state_; }
  // For people and the roll-call: "recovering", "lacking", "closed" or "open".
  std::string_view Describe() const;
  // The plan version that made this server the owner, and the next owner's.
  PlanVersion version() const { return version_; }
  PlanVersion next_version() const { return next_version_; }
  bool aborted() const { return aborted_; }
  // From now on no contribution is added: the generation has failed.
  void Abort() { aborted_ = true; }

  // ---- contributions ----
  // The last round of the node that is in the value.
  Round Applied(NodeId node) const { return Round(stamp_.applied[node.value()]); }
  // Adds a well-formed contribution of a round after Applied(node); an empty contribution adds
  // nothing. The first value is the first contribution itself. RESOURCE_EXHAUSTED: all copies that
  // the job has memory for are lent, and the next value has to wait for a free copy; nothing has
  // changed.
  absl::Status Apply(NodeId node, Round round, const EncodedBytes& contribution);
  // Stays as it is while the pointer is held. Zeros before the first contribution.
  absl::StatusOr<std::shared_ptr<const Arena>> Value() { return copies_.LatestOrZeros(); }
  const Stamp& stamp() const { return stamp_; }
  // Of the copies that are sent; it may be kept longer than the partition.
  const std::shared_ptr<PayloadEncoder::History>& encodings() const { return encodings_; }
  // A copy of the value is on its way to a node.
  bool IsLent() const { return copies_.IsLent(); }
  // There are copies above the reserved copies.
  bool HasFurtherCopies() const { return copies_.HasFurther(); }
  // Gives the memory of further copies that are not lent back to the job.
  void DropFurtherCopies() { copies_.DropFurther(); }
  // A node's contribution could not be added, and has been dropped: it has to be requested again.
  void Postpone(NodeId node);
  // When a copy is free: the first node whose contribution was postponed, once. Else nullopt.
  std::optional<NodeId> TakePostponed();

  // ---- another owner ----
  // Plan version `next` has another owner. False: the version is old, and nothing has changed.
  bool HandOver(PlanVersion next);
  // True: the partition is closed now, and the nodes have to be told. That happens at once, between
  // any two contributions, unless the value is not restored yet.
  bool CloseIfDue();
  // This server is the owner again: forgets the value, and waits for reports. False: the version is
  // old, and nothing has changed.
  bool TakeOver(PlanVersion version);
  // A node holds the answer to its round `held`, a copy with this stamp (updates 0: no copy). True
  // for the report that completes them. INVALID_ARGUMENT: the stamp is of another number of nodes.
  absl::StatusOr<bool> OnReport(NodeId node, Round held, Stamp stamp);
  bool HasReported(NodeId node) const { return reports_[node.value()].has_value(); }
  // The round of the node's report.
  Round Held(NodeId node) const;
  // The node that holds the most recent copy; nullopt if no node has a copy.
  std::optional<NodeId> Holder() const;
  // The reports are complete. Afterwards the state is kRestoring: the copy has to be requested from
  // the holder; kOpen: no node has a copy, and the value is empty; or kRecovering: the job had no
  // memory for the stamp of that copy, and the holder has to report again.
  void BeginRestore();
  // The holder's copy, payload_bytes() of it. Open from now on.
  void EndRestore(std::shared_ptr<Arena> copy);
  // While it is open: the number of updates that nodes have the answers to, and that are not in the
  // value, because only lost nodes had copies with them.
  uint64_t LostUpdates() const;
  // The node contributes no more. True if that completes the reports, or if its copy was requested:
  // then BeginRestore() is due.
  bool Lose(NodeId node);
  bool IsLost(NodeId node) const { return lost_[node.value()]; }

  // The time since which the partition waits for nodes.
  absl::Time waiting_since() const { return waiting_since_; }

 private:
  struct Report {
    Round held;
    uint64_t updates = 0;  // in the node's copy; 0: it has no copy
  };
  void AwaitReports();
  // The stamp of the most recent copy has memory of its own. Further stamps are kept as far as the
  // job has memory for them, in case that copy is lost with its node.
  void KeepStamp(NodeId node, std::vector<uint64_t> applied);
  void ForgetStamp(NodeId node);
  void ForgetStamps();
  bool PayForStamp() const;
  bool AllHaveReported() const;

  const PartitionSpec spec_;
  const std::shared_ptr<JobMemory> memory_;
  ValueCopies copies_;
  const std::shared_ptr<PayloadEncoder::History> encodings_ =
      std::make_shared<PayloadEncoder::History>();
  State state_ = State::kOpen;
  PlanVersion version_;
  PlanVersion next_version_;
  bool aborted_;
  Stamp stamp_;
  bool has_value_ = false;  // the latest copy has a contribution in it, or is restored
  std::deque<NodeId> postponed_;
  std::vector<std::optional<Report>> reports_;  // by node
  // Until the value is restored: of the copies that the nodes hold, their rounds by node.
  std::map<NodeId, std::vector<uint64_t>> stamps_;
  std::optional<NodeId> unpaid_stamp_;  // of these, in the partition's own memory
  std::vector<bool> lost_;              // by node
  absl::Time waiting_since_ = absl::InfiniteFuture();
};

}  // namespace addend
