// The integrity check of results: sums a few partitions a second time, on a server that does not
// own them, and compares the sum with the result of every node. So silent corruption is found, in
// the owner's memory or on the way. The nodes send the same contributions here, and a digest of the
// result that they received; lib/wire/audit.h chooses the rounds and the server, for all nodes
// alike. An audit that is not complete in time is abandoned: nothing waits for it. Belongs to a
// shard's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>

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
    std::string text;  // kMismatch: a sentence for people
  };
  using FindingFn = std::function<void(const Finding&)>;

  // The limit of audits under way. Beyond it the job with the most audits abandons its oldest.
  static constexpr size_t kOpenMax = 16;

  explicit Auditor(FindingFn on_finding) : on_finding_(std::move(on_finding)) {}

  // A node's contribution. Null if there was no memory for it: the audit is abandoned. `nodes`
  // nodes with `ranks` ranks together take part in the round.
  void OnContribution(const FrameHeader& header, uint32_t nodes, uint64_t ranks,
                      std::unique_ptr<EarlyContribution> contribution, absl::Time now);
  // The digest of a node's result: header.detail is the CRC-32C, header.contributors the owner's
  // server id.
  void OnDigest(const FrameHeader& header, absl::Time now);
  // Abandons the audits that began before `before`.
  void AbandonOlderThan(absl::Time before);
  // The node's link has closed: abandons the audits that refer to the memory of its process.
  void ForgetNode(JobId job, NodeId node);
  void ForgetJob(JobId job);

 private:
  struct Audit {
    FrameHeader header;  // of the first frame: partition, round, dtype, operation
    uint32_t nodes = 0;  // 0: no contribution has arrived
    uint64_t ranks = 0;
    uint64_t elements = 0;  // of the contributions that are not empty
    WireDType wire = WireDType::kSame;
    std::map<NodeId, std::unique_ptr<EarlyContribution>> contributions;
    std::map<NodeId, uint32_t> digests;
    uint32_t owner = 0;
    absl::Time since;
  };
  using Key = std::tuple<JobId, Generation, PartitionId, Round>;

  Audit* Find(const FrameHeader& header, absl::Time now);
  Key FirstToGiveWay() const;
  void FinishIfComplete(const FrameHeader& header);
  Finding Compare(const Audit& audit) const;
  // By value: a reference might point into the audit that is erased.
  void Abandon(Key key);

  const FindingFn on_finding_;
  std::map<Key, Audit> open_;
};

}  // namespace addend
