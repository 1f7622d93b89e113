// A job of which the scheduler has no records, as its nodes remember it (v1::Recollection). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "services/scheduler/job.h"
#include "services/scheduler/store/store.h"

namespace addend {

class ForgottenJob {
 public:
  // Takes in a node's recollection. A node that comes again is taken anew. An error refuses a node
  // that does not belong to the job of the nodes before it, or that remembers more than a job has.
  absl::Status Take(const v1::RegisterNodeRequest& request);
  // The plan version that a server was told, of a generation.
  void TakeVersion(uint32_t generation, uint64_t plan_version);

  uint64_t id() const { return id_; }
  // Its nodes, settings and secret, as far as they have come.
  const Job& job() const { return job_; }
  // Node ranks that take part in the generation and have not come.
  std::vector<NodeId> MissingNodes() const;
  // The servers that own partitions.
  const std::set<ServerId>& Owners();

  // Another number for each owner. `number_of`: of the former number.
  void NumberOwners(absl::FunctionRef<ServerId(ServerId)> number_of);
  // The records of the job, of its nodes, agreements and plans. Not of its servers.
  std::vector<StoreEntry> Records(const std::string& key, absl::Time now) const;

 private:
  // The part of a recollection that is the node's own.
  struct Memory {
    std::set<uint32_t> tensors;
    std::set<uint32_t> undeclared;
    std::set<uint32_t> removed;
    bool idle = false;
  };

  void BeginGeneration(uint32_t generation);
  absl::Status CheckRoom(const v1::Recollection& told) const;
  void Merge(const v1::TensorPlan& plan);
  bool Agreed(const v1::TensorPlan& plan, v1::AgreementRecord* agreement) const;
  v1::JobRecord JobRecordOf(const std::string& key, absl::Time now, uint64_t agreements) const;

  uint64_t id_ = 0;
  Job job_;
  v1::JobState state_ = v1::FORMING;
  uint32_t generation_ = 0;
  v1::Recollection failure_;  // FAILED: its reason, exit code and kind
  uint64_t plan_version_ = 0;
  uint64_t told_version_ = 0;                 // the highest that a node was told
  std::map<uint32_t, v1::TensorPlan> plans_;  // by tensor: of each partition the latest owner
  uint64_t partitions_ = 0;                   // of all
  uint32_t last_removed_ = 0;                 // the highest number of a tensor that was removed
  std::optional<std::set<ServerId>> owners_;  // empty: not up to date
  std::set<uint32_t> lost_;
  std::map<NodeId, Memory> memories_;
};

}  // namespace addend
