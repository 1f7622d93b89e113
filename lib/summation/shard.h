// A shard of a summation server: a thread with its transports, the links of the nodes to it, and
// its part of every job. There are no locks: everything runs on the shard's loop.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/auth/link_proof.h"
#include "lib/shard/event_loop.h"
#include "lib/summation/doorkeeper.h"
#include "lib/summation/job_shard.h"
#include "lib/summation/node_link.h"
#include "lib/summation/peer_links.h"
#include "lib/summation/server_identity.h"
#include "lib/summation/shard_context.h"
#include "lib/summation/shard_stats.h"
#include "lib/summation/specs.h"
#include "lib/summation/stall_log.h"
#include "lib/transport/convoy.h"
#include "lib/transport/inproc/factory.h"
#include "lib/transport/rdma/rdma_transport.h"
#include "lib/transport/this_machine/factory.h"

namespace addend {

class Shard {
 public:
  // `machine`, `budget` and `identity` outlive the shard. `on_mismatch` is called on the loop, with
  // a sentence for people about the sum that an audit found to be wrong. `on_trouble`: see
  // Outgoing; null: this shard relays nothing.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(
      Machine* machine, uint32_t index, MemoryBudget* budget, const ServerIdentity* identity,
      const SendLimits& send_limits, std::shared_ptr<InprocNetwork> network,
      std::function<void(const std::string&)> on_mismatch = nullptr,
      WireEncoding encoding = WireEncoding::kAuto, Outgoing::TroubleFn on_trouble = nullptr);
  ~Shard();

  // ---- any thread ----
  EventLoop* loop() { return loop_.get(); }
  std::shared_ptr<Transport> tcp() { return tcp_; }
  const ShardStats& stats() const { return context_.stats; }
  // An entry is null if that transport is not configured.
  std::vector<const Transport*> transports() const {
    return {tcp_.get(), inproc_.get(), shm_.get(), rdma_.get()};
  }
  absl::Status ListenInproc(const std::string& name);
  // Nothing on a machine without shared memory.
  absl::Status ListenSharedMemory(const std::string& name);
  absl::Status ListenRdma(const rdma::Devices& devices, const RdmaOptions& options);

  // ---- links, on the loop ----
  // A transport has accepted a link. The result is the sink of the link.
  Sink* Accept(Link* link, const Transport& transport);
  // A peer requests a link over RDMA. Nothing is set up for a peer that has not proved a token.
  struct RdmaCall {
    std::string peer;
    auth::LinkTerms terms;
    std::string proof;
    rdma::Signal::Ends offer;
  };
  void AnswerRdma(const RdmaCall& call, std::unique_ptr<rdma::Signals> signals);
  // Closes all links over RDMA, and accepts no more of them.
  void HangUp();

  // ---- orders of the scheduler, on the loop; unknown jobs are ignored ----
  // A larger generation drops the former one. Within a generation only the failure and newly lost
  // nodes have an effect.
  void SetJob(const JobSpec& spec, std::shared_ptr<JobMemory> memory);
  void DropJob(JobId job, const absl::Status& why);
  // The job must be known.
  void AddPartition(JobId job, std::shared_ptr<Partition> partition);
  void AddPartition(JobId job, std::shared_ptr<LatestPartition> partition);
  void AddPartition(JobId job, std::shared_ptr<RelayedPartition> partition);
  // As the methods of JobShard.
  void TakeOver(JobId job, PartitionId partition, PlanVersion version, bool handed_over);
  void HandOver(JobId job, TensorId tensor, const std::set<uint32_t>& partitions, PlanVersion next);
  void DropRelayed(JobId job, TensorId tensor, const std::set<uint32_t>& partitions);
  void DropPartitions(JobId job, TensorId tensor, const std::set<uint32_t>& partitions);
  void LimitInFlight(JobId job, size_t bytes, size_t sums);
  // Makes room for accumulators and for other jobs.
  void TrimEarly();

  // ---- numbers, on the loop ----
  // Appends the rounds of the job that wait for nodes, until `out` has `limit` entries. Job 0: of
  // all jobs.
  void RollCall(JobId job, size_t limit, std::vector<OpenRoundInfo>* out) const;
  // These add this shard's numbers to the numbers of other shards.
  void AddTotals(std::map<JobId, JobTotals>* totals) const;
  void AddLinks(LinkCounts* counts) const;
  void AddNames(JobId job, std::map<TensorId, std::string>* names) const;
  const ShardJournal& journal() const { return context_.journal; }

 private:
  Shard(const Machine* machine, std::unique_ptr<EventLoop> loop, MemoryBudget* budget,
        const ServerIdentity* identity, const SendLimits& send_limits,
        std::function<void(const std::string&)> on_mismatch, WireEncoding encoding);
  JobShard* Find(JobId job) const;  // null if the job is not known
  void PrepareOutgoing(const Machine* machine, Outgoing::TroubleFn on_trouble);
  void OnAudited(const Auditor::Finding& finding);
  void CheckStalls();
  void MeasureLinks();

  const SendLimits send_limits_;
  const std::function<void(const std::string&)> on_mismatch_;
  const std::unique_ptr<EventLoop> loop_;
  ShardContext context_;
  std::shared_ptr<Transport> tcp_;
  std::shared_ptr<Transport> inproc_;
  std::shared_ptr<Transport> shm_;
  std::shared_ptr<RdmaTransport> rdma_;
  bool hung_up_ = false;
  Convoy convoy_;  // of the sums that are sent to other servers
  Outgoing outgoing_;
  StallLog stalls_;
  std::map<JobId, std::unique_ptr<JobShard>> jobs_;
  Doorkeeper doorkeeper_;
  std::list<std::unique_ptr<NodeLink>> links_;
};

}  // namespace addend
