// Sums a few partitions a second time, on a server that does not own them, and compares with what
// every node was given: silent corruption, of the owner's memory or on the way, gets a name. The
// nodes send the same contributions here, and a digest of the result that they got; which rounds,
// and to whom, they all compute alike (lib/wire/audit.h). What is not complete in time is
// abandoned: nothing waits for an audit. Belongs to one shard's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/base/types.h"
#include "lib/summation/early_buffers.h"
#include "lib/wire/frame.h"

namespace addend {

class Auditor {
 public:
  enum class Result : uint8_t { kMatch, kMismatch, kAbandoned };
  struct Finding {
    Result result = Result::kMatch;
    JobId job;
    std::string text;  // kMismatch: one sentence for people
  };
  using FindingFn = std::function<void(const Finding&)>;

  // Audits that are under way at a time; the oldest of the job that has most gives way.
  static constexpr size_t kOpenMax = 16;

  explicit Auditor(FindingFn on_finding) : on_finding_(std::move(on_finding)) {}

  // Both of a round that `nodes` nodes with `ranks` ranks each take part in.
  // A node's contribution; null: there was no memory for it, so the audit is abandoned.
  void OnContribution(const FrameHeader& header, uint32_t nodes, uint32_t ranks,
                      std::unique_ptr<EarlyContribution> contribution, absl::Time now);
  // What the node was given: header.detail is the CRC-32C, header.contributors the owner's server
  // id.
  void OnDigest(const FrameHeader& header, uint32_t nodes, uint32_t ranks, absl::Time now);
  // Abandons what began before `before`.
  void AbandonOlderThan(absl::Time before);
  // What refers to this node's memory goes: its link has closed.
  void ForgetNode(JobId job, NodeId node);
  void ForgetJob(JobId job);

 private:
  struct Audit {
    FrameHeader header;  // of the first frame: partition, round, dtype, operation
    uint32_t ranks = 1;
    std::vector<std::unique_ptr<EarlyContribution>> contributions;  // by node
    std::vector<std::optional<uint32_t>> digests;                   // by node
    uint32_t owner = 0;
    absl::Time since;
  };
  using Key = std::tuple<JobId, Generation, PartitionId, Round>;

  Audit* Find(const FrameHeader& header, uint32_t nodes, uint32_t ranks, absl::Time now);
  Key FirstToGiveWay() const;
  void FinishIfComplete(const FrameHeader& header);
  Finding Compare(const Audit& audit) const;
  // By value: the key of what is erased may be the very one that is given.
  void Abandon(Key key);

  const FindingFn on_finding_;
  std::map<Key, Audit> open_;
};

}  // namespace addend
