// One partition of a tensor in asynchronous mode (ReduceOp::kAccumulate) on its owner: the latest
// value, to which every contribution is added when it comes, and who has contributed how often.
// Belongs to one shard's thread. Knows no link.
//
// A node's rounds are its own: it contributes round r + 1 when it has the answer to round r, the
// value as it was when r had been added. So a node has one contribution under way at most, which it
// keeps, and the copies that the nodes hold are all that is needed when the owner is lost: the most
// recent of them has every contribution whose answer any node has.
//
// Invariants
//  1. A contribution is added once: the stamp of a copy says which ones are in it.
//  2. Nothing is added before every node that is left has reported what it holds.
//  3. A value that has been sent never changes: the next one is made elsewhere while it is lent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/memory/arena.h"
#include "lib/summation/partition.h"
#include "lib/wire/stamp.h"

namespace addend {

class LatestPartition {
 public:
  enum class State : uint8_t {
    kOpen,        // contributions are added
    kClosed,      // another server is the owner: kept until every node follows that one
    kRecovering,  // waits for the nodes' reports
    kRestoring,   // waits for the most recent copy
  };

  // The owner from the first round on, unless spec.version names a plan: then another one was it
  // before, and the nodes report what they hold.
  explicit LatestPartition(Partition::Spec spec);

  const Partition::Spec& spec() const { return spec_; }
  size_t payload_bytes() const { return spec_.elements * SizeOf(spec_.dtype); }
  State state() const { return state_; }
  // For people and the roll-call: "recovering", "lacking", "closed" or "open".
  std::string_view Describe() const;
  // The plan version that made this server the owner, and the next owner's.
  PlanVersion version() const { return version_; }
  PlanVersion next_version() const { return next_version_; }
  bool aborted() const { return aborted_; }
  // From now on nothing is added: the generation has failed.
  void Abort() { aborted_ = true; }

  // ---- contributions ----
  // The last round of the node that is in the value.
  Round Applied(NodeId node) const { return Round(stamp_.applied[node.value()]); }
  // Adds a contribution of a round after Applied(node); an empty one adds nothing. The first value
  // is the first contribution itself. RESOURCE_EXHAUSTED: no memory for the next value.
  absl::Status Apply(NodeId node, Round round, Bytes contribution);
  // Stays as it is while the pointer is held. Zeros before the first contribution.
  absl::StatusOr<std::shared_ptr<const Arena>> Value();
  const Stamp& stamp() const { return stamp_; }

  // ---- another owner ----
  // The next owner is that of plan version `next`. False: old news.
  bool HandOver(PlanVersion next);
  // True: it is closed now, the nodes have to be told. Between any two contributions, so at once,
  // unless where it stands is not known yet.
  bool CloseIfDue();
  // This server is the owner once more: forgets all, and waits for reports. False: old news.
  bool TakeOver(PlanVersion version);
  // A node holds the answer to its round `held`, a copy with this stamp (updates 0: none). True for
  // the report that completes them. INVALID_ARGUMENT: the stamp is of another number of nodes.
  absl::StatusOr<bool> OnReport(NodeId node, Round held, Stamp stamp);
  bool HasReported(NodeId node) const { return reports_[node.value()].has_value(); }
  // The round of the node's report.
  Round Held(NodeId node) const;
  // Who holds the most recent copy; none: nobody has any.
  std::optional<NodeId> Holder() const;
  // The reports are complete, and the holder is asked for its copy. Without one this server starts
  // anew.
  void BeginRestore();
  // The holder's copy, payload_bytes() of it. Open from now on.
  void EndRestore(std::shared_ptr<Arena> copy);
  // Once it is open: how many updates whose answers nodes have are not in the value, because only
  // lost nodes had copies with them.
  uint64_t LostUpdates() const;
  // The node takes part in nothing any more. True if that completes the reports, or if it was asked
  // for its copy: then BeginRestore() is due.
  bool Lose(NodeId node);

  // Since when it waits for nodes.
  absl::Time waiting_since() const { return waiting_since_; }

 private:
  struct Report {
    Round held;
    Stamp stamp;
  };
  void AwaitReports();
  bool AllHaveReported() const;
  absl::StatusOr<std::shared_ptr<Arena>> RoomForNext();

  const Partition::Spec spec_;
  State state_ = State::kOpen;
  PlanVersion version_;
  PlanVersion next_version_;
  bool aborted_;
  Stamp stamp_;
  std::shared_ptr<Arena> value_;
  bool has_value_ = false;
  std::vector<std::shared_ptr<Arena>> former_;  // values that may still be lent
  std::vector<std::optional<Report>> reports_;  // by node
  std::vector<bool> lost_;                      // by node
  absl::Time waiting_since_ = absl::InfiniteFuture();
};

}  // namespace addend
