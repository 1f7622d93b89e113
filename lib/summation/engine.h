// A summation server without its control plane: shards, memory, data listeners. The same engine
// runs in addend-summation and, colocated, in every agent.
//
// Threads: any thread may call the control methods; they run in turn, and each waits until all
// shards have executed it. Statistics may be read at any time.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lib/base/mutex.h"
#include "lib/summation/engine_relays.h"
#include "lib/summation/job_memory.h"
#include "lib/summation/memory_budget.h"
#include "lib/summation/shard.h"
#include "lib/summation/specs.h"

namespace addend {

struct EngineStats {
  uint64_t network_bytes_sent = 0;
  uint64_t network_bytes_received = 0;
  uint64_t local_bytes = 0;
  uint64_t copied_bytes = 0;
  uint64_t partitions_sealed = 0;
  uint64_t payload_bytes_summed = 0;
  uint64_t early_kept = 0;
  uint64_t early_dropped = 0;
  uint64_t links_malformed = 0;
  std::array<uint64_t, kRefusalNames.size()> links_refused{};  // by Refusal
  uint64_t updates_applied = 0;
  uint64_t updates_lost = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t memory_peak_bytes = 0;
  double spun_s = 0;  // by the shards' threads: they looked for work before they slept
};

// INVALID_ARGUMENT: a server of so many shards must not reserve the tensor's partitions.
absl::Status CheckTensor(const TensorSpec& tensor, size_t shards);

class Engine {
 public:
  struct Options {
    uint32_t shards = 1;
    uint64_t memory_limit_bytes = 0;      // 0: no limit
    uint64_t job_memory_limit_bytes = 0;  // of each job; 0: no limit
    Incarnation incarnation;
    SendLimits send_limits;                       // for the machine's link
    WireEncoding encoding = WireEncoding::kAuto;  // of results
    std::shared_ptr<InprocNetwork> network;       // null: no in-process links
    rdma::Devices rdma_devices = {};              // empty: no links over RDMA
    RdmaOptions rdma_options = {};
    ExternalSlotsFn external_slots;    // null: all results in the engine's own memory
    Machine* machine = ThisMachine();  // outlives the engine
  };
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Options options);
  ~Engine();

  // For other processes: on a TCP port that all shards share, and through shared memory, if the
  // machine has it. Returns the bound port.
  absl::StatusOr<uint16_t> Listen(const Address& bind);
  // Shard i listens as InprocName(i).
  absl::Status ListenInproc();
  static std::string InprocName(uint32_t shard);
  // A peer requests a link over RDMA. Any thread; does not wait. The shard answers the peer.
  void AnswerRdma(Shard::RdmaCall call, std::unique_ptr<rdma::Signals> signals);
  // Closes all links over RDMA, whose conversations would keep gRPC from ending, and takes no more.
  void HangUp();

  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  ServerId id() const { return ServerId(identity_.id.load()); }
  Incarnation incarnation() const { return identity_.incarnation; }
  void SetServerId(ServerId id) { identity_.id = id.value(); }

  // INVALID_ARGUMENT: SetJob() must not be called with `spec`. A number is 0 or too large, a lost
  // node is not a node of the job, or the generation that is held has other nodes.
  absl::Status CheckJob(const JobSpec& spec) const;
  // Makes the job known, or moves it to a larger generation, which drops all tensors of the former
  // generation.
  void SetJob(const JobSpec& spec);
  // Reserves two accumulators for every named partition that is not held yet. A partition that had
  // another owner before (its version is newer than the version held) first recovers: see
  // Ownership. If another tensor is held under the number, it is dropped first: a scheduler that
  // has lost its records does not know for which tensors servers were asked before.
  // RESOURCE_EXHAUSTED (with the numbers) when the memory limit has no room, INVALID_ARGUMENT for a
  // bad spec.
  absl::Status Reserve(JobId job, const TensorSpec& tensor);
  // Reserves memory for these partitions of the tensor, which other servers own and this server
  // relays, if they are not relayed yet: `orders` has an order for each. Errors as of Reserve().
  absl::Status Relay(JobId job, const TensorSpec& tensor, const std::vector<RelayOrder>& orders);
  // Another server owns these partitions from the plan version `next` on. Each is closed between
  // two rounds, and the nodes are told; it is held until it is released.
  void HandOver(JobId job, TensorId tensor, const std::set<uint32_t>& partitions, PlanVersion next);
  // The tensor is held and relayed no more.
  void Release(JobId job, TensorId tensor);
  void Release(JobId job, TensorId tensor, const std::set<uint32_t>& partitions);
  void ReleaseJob(JobId job);
  // Drops all jobs and partitions that are not named.
  using Holdings = std::map<JobId, std::map<TensorId, std::set<uint32_t>>>;
  void RetainOnly(const Holdings& wanted, const Holdings& relayed = {});

  std::vector<OpenRoundInfo> RollCall(JobId job, size_t limit) const;
  EngineStats stats() const;
  // Numbers of a job's present generation.
  struct JobNumbers {
    JobTotals totals;
    uint64_t reserved_bytes = 0;
  };
  std::map<JobId, JobNumbers> job_numbers() const;
  LinkCounts links() const;
  uint64_t memory_limit_bytes() const { return options_.memory_limit_bytes; }
  uint64_t job_memory_limit_bytes() const { return options_.job_memory_limit_bytes; }
  // The mismatches that audits have found since the last call: sentences for people.
  std::vector<std::string> TakeMismatches();
  // The servers that relays here cannot reach, with sentences for people, by job and server; until
  // the job relays nothing here any more.
  EngineRelays::Troubles troubles() const { return relays_.troubles(); }
  // The events of the job's last `rounds` rounds of every tensor, newest first.
  std::vector<SumEvent> Trace(JobId job, uint64_t rounds) const;
  // The names of the tensors that the engine has partitions of.
  std::map<TensorId, std::string> TensorNames(JobId job) const;
  uint64_t free_bytes() const { return budget_.free(); }

 private:
  struct HeldTensor {
    TensorSpec spec;  // without partitions
    HeldPartitions partitions;
  };
  struct HeldJob {
    JobSpec spec;
    std::shared_ptr<JobMemory> memory;
    std::map<TensorId, HeldTensor> tensors;
    uint64_t all_bytes = 0;             // of the whole tensors, together
    std::vector<uint64_t> owned_bytes;  // payload on each shard
    uint64_t result_bytes = 0;          // that they send in a round
    void ForgetTensors();
    uint64_t partitions() const {
      uint64_t sum = 0;
      for (const auto& [id, tensor] : tensors) sum += tensor.partitions.size();
      return sum;
    }
  };

  explicit Engine(Options options);
  absl::StatusOr<std::vector<std::shared_ptr<Partition>>> MakePartitions(const HeldJob& job,
                                                                         const TensorSpec& tensor,
                                                                         HeldPartitions* held);
  absl::StatusOr<std::vector<std::shared_ptr<LatestPartition>>> MakeLatest(const HeldJob& job,
                                                                           const TensorSpec& tensor,
                                                                           HeldPartitions* held);
  void TrimEarly() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename P>
  void GiveToShards(JobId job, const TensorSpec& tensor,
                    const std::vector<std::shared_ptr<P>>& partitions);
  void DropOutdated(JobId job, const TensorSpec& wanted, HeldJob* held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(JobId job, TensorId tensor, const std::set<uint32_t>& partitions, HeldJob* held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LimitInFlight(JobId id, const HeldJob& job) const;
  void OnShards(absl::FunctionRef<void(Shard*)> task) const;

  const Options options_;
  MemoryBudget budget_;
  ServerIdentity identity_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<DataPort> port_;
  Mutex mismatches_mu_;
  std::vector<std::string> mismatches_ ABSL_GUARDED_BY(mismatches_mu_);
  mutable Mutex mu_;
  std::map<JobId, HeldJob> jobs_ ABSL_GUARDED_BY(mu_);
  EngineRelays relays_;
};

}  // namespace addend
