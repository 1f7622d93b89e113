// The partitions that an engine relays for their owners: their memory, their way to the shards, and
// the servers that they cannot reach. The engine's lock guards the calls; troubles come from any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/ids.h"
#include "lib/base/mutex.h"
#include "lib/summation/job_memory.h"
#include "lib/summation/shard.h"
#include "lib/summation/specs.h"

namespace addend {

class EngineRelays {
 public:
  using Shards = std::vector<std::unique_ptr<Shard>>;
  using Troubles = std::map<std::pair<JobId, ServerId>, std::string>;
  using Holdings = std::map<TensorId, std::set<uint32_t>>;

  // `shards` outlive this object.
  explicit EngineRelays(const Shards* shards) : shards_(shards) {}

  // As Engine::Relay, of a tensor that has been checked. Another tensor under the number is dropped
  // first.
  absl::Status Reserve(const JobSpec& job, const std::shared_ptr<JobMemory>& memory,
                       const TensorSpec& tensor, const std::vector<RelayOrder>& orders);
  void Release(JobId job, TensorId tensor);
  // Drops all partitions of the job that are not named.
  void RetainOnly(JobId job, const Holdings& wanted);
  // The payload that each shard relays of the job in a round, and sends as results.
  struct Load {
    std::vector<uint64_t> bytes;
    uint64_t result_bytes = 0;
  };
  Load LoadOf(JobId job) const;
  // The shards have dropped the job, or its generation.
  void EndJob(JobId job);

  // Any thread.
  void NoteTrouble(JobId job, ServerId peer, const std::string& why);
  Troubles troubles() const;

 private:
  struct HeldTensor {
    TensorSpec spec;
    HeldPartitions partitions;
  };
  struct Held {
    std::shared_ptr<JobMemory> memory;
    std::map<TensorId, HeldTensor> tensors;
  };
  // Null: nothing of it is held.
  const HeldTensor* Find(JobId job, TensorId tensor) const;
  void Drop(JobId job, TensorId tensor, const std::set<uint32_t>& partitions);
  void ForgetTroubles(JobId job);

  const Shards* const shards_;
  std::map<JobId, Held> jobs_;
  mutable Mutex troubles_mu_;
  Troubles troubles_ ABSL_GUARDED_BY(troubles_mu_);
};

}  // namespace addend
