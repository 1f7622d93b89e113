// One shard of a summation server: one thread that owns a set of partitions, the links of the nodes
// to it, and sums. No locks: everything here runs on the shard's loop.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/base/line_pace.h"
#include "lib/shard/event_loop.h"
#include "lib/summation/auditor.h"
#include "lib/summation/node_link.h"
#include "lib/summation/partition.h"
#include "lib/summation/shard_journal.h"
#include "lib/summation/specs.h"
#include "lib/summation/stall_log.h"
#include "lib/transport/inproc/factory.h"
#include "lib/transport/rdma/rdma_transport.h"
#include "lib/transport/tcp/factory.h"

namespace addend {

// Who this server is, in the frames it sends. Set when the scheduler has given the number.
struct ServerIdentity {
  std::atomic<uint32_t> id{0};
  Incarnation incarnation;
};

// Why a link was refused. The names are those of the metric.
enum class Refusal { kUnknownJob, kNoToken, kWrongToken, kExpiredToken, kNotMember, kTooLate };
inline constexpr std::array<std::string_view, 6> kRefusalNames = {
    "unknown_job", "no_token", "wrong_token", "expired_token", "not_a_member", "too_late"};

// Counted by a shard, read by anyone.
struct ShardStats {
  std::atomic<uint64_t> partitions_sealed{0};
  std::atomic<uint64_t> payload_bytes_summed{0};
  std::atomic<uint64_t> copied_bytes{0};
  std::atomic<uint64_t> early_kept{0};
  std::atomic<uint64_t> early_dropped{0};
  std::array<std::atomic<uint64_t>, kRefusalNames.size()> links_refused{};  // by Refusal
  std::atomic<uint64_t> updates_applied{0};
  std::atomic<uint64_t> updates_lost{0};
};

// Links of nodes, and what waits to be sent through them.
struct LinkCounts {
  std::map<std::string, uint64_t> by_transport;
  uint64_t queued = 0;  // frames
};

struct ShardJob {
  JobSpec spec;
  std::shared_ptr<JobMemory> memory;
  JobTotals totals;
  std::vector<NodeLink*> links;  // by node; null: not connected
  absl::flat_hash_map<PartitionId, std::shared_ptr<Partition>> partitions;
  absl::flat_hash_map<PartitionId, std::shared_ptr<LatestPartition>> latest;  // asynchronous ones
  uint64_t lost_updates = 0;  // of those that were restored and are still to be reported
  size_t restored = 0;
  size_t in_flight_bytes = SendLimits::kUnlimited;  // of every link, at most
};

class Shard {
 public:
  // `budget` and `identity` outlive the shard.
  // `on_mismatch` is told in one sentence what an audit has found, on the loop.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(
      uint32_t index, MemoryBudget* budget, const ServerIdentity* identity,
      const SendLimits& send_limits, std::shared_ptr<InprocNetwork> network,
      std::function<void(const std::string&)> on_mismatch = nullptr);
  ~Shard();

  EventLoop* loop() { return loop_.get(); }
  std::shared_ptr<Transport> tcp() { return tcp_; }
  const ShardStats& stats() const { return stats_; }
  // Null: there is none of that kind.
  std::vector<const Transport*> transports() const {
    return {tcp_.get(), inproc_.get(), rdma_.get()};
  }
  // For whoever listens. `transport`: of the link.
  Sink* Accept(Link* link, const Transport& transport);
  absl::Status ListenInproc(const std::string& name);
  absl::Status ListenRdma(const rdma::Devices& devices, const RdmaOptions& options);

  // ---- control, on the loop ----
  // A peer asks for a link over RDMA. Nothing is set up for it unless it has proved a token.
  struct RdmaCall {
    std::string peer;
    auth::LinkTerms terms;
    std::string proof;
    rdma::Signal::Ends offer;
  };
  void AnswerRdma(const RdmaCall& call, std::unique_ptr<rdma::Signals> signals);
  void HangUp();
  // A larger generation drops all of the former one. Else what has changed is done: rounds are
  // aborted, or go on without lost nodes.
  void SetJob(const JobSpec& spec, std::shared_ptr<JobMemory> memory);
  void AddPartition(JobId job, std::shared_ptr<Partition> partition);
  void AddPartition(JobId job, std::shared_ptr<LatestPartition> partition);
  // The partition had another owner, which hands it over, or its nodes have to report. Only if it
  // is here, and the version is newer than its own.
  void TakeOver(JobId job, PartitionId partition, PlanVersion version, bool handed_over);
  // Others own these from `next` on: those that are here are closed between two rounds, and the
  // nodes told.
  void HandOver(JobId job, TensorId tensor, const std::set<uint32_t>& partitions, PlanVersion next);
  void DropPartitions(JobId job, TensorId tensor, const std::set<uint32_t>& partitions);
  void DropJob(JobId job, const absl::Status& why);
  // What is on its way through each link of the job, about, at most.
  void LimitInFlight(JobId job, size_t bytes);
  // Makes room for accumulators and other jobs: what a job kept before its turn, and above its
  // part, is asked for again at its turn.
  void TrimEarly();
  void RollCall(JobId job, size_t limit, std::vector<OpenRoundInfo>* out) const;
  // Adds this shard's numbers to those of others.
  void AddTotals(std::map<JobId, JobTotals>* totals) const;
  void AddLinks(LinkCounts* counts) const;
  void AddNames(JobId job, std::map<TensorId, std::string>* names) const;
  const ShardJournal& journal() const { return journal_; }

  // ---- for NodeLink, on the loop ----
  EarlyBuffers* early_buffers() { return early_buffers_.get(); }
  // Counts and logs that a peer is turned away, before it is told so. Returns `why`.
  absl::Status Refuse(const std::string& peer, Refusal reason, absl::Status why);
  // What a peer has to prove that has opened a link so.
  absl::StatusOr<auth::LinkTerms> TermsFor(const std::string& peer, const FrameHeader& hello,
                                           Bytes opening);
  // The token with which the peer has made the proof, if it is the right one and has not expired.
  absl::StatusOr<auth::Secret> TokenOf(const std::string& peer, const auth::LinkTerms& terms,
                                       Bytes proof);
  absl::StatusOr<ShardJob*> Admit(NodeLink* link, const auth::Claim& node);
  void Sign(FrameHeader* header) const;
  // Takes the contribution whose turn it is, goes on with what came early, and sends the result if
  // that was all.
  absl::Status Take(ShardJob* job, Partition* partition, Payload payload, bool empty);
  // A contribution has come whose first byte came at `began`.
  void NoteArrival(const NodeLink& link, Partition* partition, const FrameHeader& header,
                   int64_t began);
  // Goes on with what came early.
  absl::Status Advance(ShardJob* job, Partition* partition);
  void SendResult(NodeLink* link, const Partition& partition);
  // All reports are there: says to every node which round is the newest, and sees to it that every
  // node gets that.
  void EndRecovery(ShardJob* job, Partition* partition);
  void SendRecovered(NodeLink* link, const Partition& partition);
  // The open round will have no result.
  void SendAborted(NodeLink* link, const Partition& partition);
  // Another server is the owner, from the round after the last sealed one on.
  void SendMoved(NodeLink* link, const Partition& partition);
  // Hands it over, if that was asked for and no round is open.
  void CloseIfDue(ShardJob* job, Partition* partition);
  void AskForNewest(NodeLink* link, const Partition& partition);
  // Sends the newest result to the nodes that lack it.
  void Relay(ShardJob* job, Partition* partition);
  void OnLinkClosed(NodeLink* link, const absl::Status& why);
  // A node's contribution to be summed a second time, null if there was no memory for it; and the
  // digest of what the node was given.
  void Audit(const ShardJob& job, const FrameHeader& header,
             std::unique_ptr<EarlyContribution> contribution);
  void AuditDigest(const ShardJob& job, const FrameHeader& header);

  // ---- the same in asynchronous mode (shard_latest.cc) ----
  // Adds the update, and answers it.
  absl::Status Take(NodeLink* link, LatestPartition* partition, const FrameHeader& update,
                    Bytes values);
  // The answer to the last update of the node that is in the value.
  absl::Status SendLatest(NodeLink* link, LatestPartition* partition, int32_t priority);
  // All reports are there: asks for the most recent copy.
  void Restore(ShardJob* job, LatestPartition* partition);
  void AskForCopy(NodeLink* link, const LatestPartition& partition);
  // It is there.
  void EndRestore(ShardJob* job, LatestPartition* partition, std::shared_ptr<Arena> copy);
  // Where the partition stands for this node: which of its updates are in the value.
  void SendRecovered(NodeLink* link, const LatestPartition& partition);
  void SendMoved(NodeLink* link, const LatestPartition& partition);
  void SendAborted(NodeLink* link, const LatestPartition& partition, Round round);

 private:
  Shard(MemoryBudget* budget, const ServerIdentity* identity, const SendLimits& send_limits,
        std::function<void(const std::string&)> on_mismatch)
      : early_buffers_(EarlyBuffers::Create(budget)),
        identity_(identity),
        send_limits_(send_limits),
        on_mismatch_(std::move(on_mismatch)),
        auditor_([this](const Auditor::Finding& finding) { OnAudited(finding); }) {}
  void OnAudited(const Auditor::Finding& finding);
  void NoteRecovery(Partition* partition) const;
  void Abort(ShardJob* job, Partition* partition);
  void Lose(ShardJob* job, NodeId node);
  void Lose(ShardJob* job, Partition* partition, NodeId node);
  absl::Status Taken(ShardJob* job, Partition* partition, absl::Status status, size_t bytes);
  void Settle(ShardJob* job, Partition* partition);
  void SendResults(ShardJob* job, Partition* partition);
  void StopReceiving(const Partition& partition);
  // A contribution to this partition, or a repetition of one, has come in part.
  bool IsReceiving(const Partition& partition) const;
  void AskAgain(ShardJob* job, const Partition& partition, NodeId node);
  void CheckStalls();
  // Those that have not said who they are for too long.
  void CloseStrangers();
  void CloseIfDue(ShardJob* job, LatestPartition* partition);
  void Open(ShardJob* job, LatestPartition* partition);
  void NoteRestored(ShardJob* job, const LatestPartition& restored);
  static void RollCallLatest(const ShardJob& job, size_t limit, std::vector<OpenRoundInfo>* out);
  // A header about this partition, to one of the job's nodes.
  FrameHeader HeaderFor(const ShardJob& job, const Partition& partition, FrameType type) const;
  FrameHeader HeaderFor(const ShardJob& job, const Partition::Spec& spec, PlanVersion version,
                        FrameType type) const;
  FrameHeader HeaderFor(const NodeLink& link, const LatestPartition& partition,
                        FrameType type) const;

  const std::shared_ptr<EarlyBuffers> early_buffers_;
  const ServerIdentity* const identity_;
  const SendLimits send_limits_;
  const std::function<void(const std::string&)> on_mismatch_;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<Transport> tcp_;
  std::shared_ptr<Transport> inproc_;
  std::shared_ptr<RdmaTransport> rdma_;
  bool hung_up_ = false;
  ShardStats stats_;
  ShardJournal journal_;
  Auditor auditor_;
  StallLog stalls_;
  LinePace refusals_;

  absl::flat_hash_map<JobId, std::unique_ptr<ShardJob>> jobs_;
  std::list<std::unique_ptr<NodeLink>> links_;
};

}  // namespace addend
