// The journal of a shard's rounds, for the trace and for the numbers of every job: when
// contributions arrived, how long they took to sum, when results were sent. Belongs to the shard's
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/base/ids.h"
#include "lib/trace/duration_histogram.h"
#include "lib/trace/ring.h"

namespace addend {

// A step of a round. Times are as TraceNow().
struct SumEvent {
  enum class Kind : uint8_t {
    kReceived,  // from the first to the last byte of a node's contribution
    kSummed,    // from a round's last contribution to its result
    kSent,      // from a round's result to the end of sending it to a node
  };
  JobId job;
  Generation generation;
  PartitionId partition;
  Round round;
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t bytes = 0;
  uint32_t busy_ns = 0;  // kSummed: adding, since the round began
  NodeId node = {};      // kReceived, kSent
  Kind kind = Kind::kReceived;
};

// The arrivals of the contributions to a partition's open round.
struct Gathering {
  int64_t first = 0;
  int64_t last = 0;
  int64_t before_last = 0;
  NodeId last_node;
  int64_t busy_ns = 0;

  void Note(NodeId node, int64_t now) {
    if (first == 0) first = now;
    before_last = last;
    last = now;
    last_node = node;
  }
};

// The totals of a job, over its generations.
struct JobTotals {
  std::string name;
  uint64_t partitions_sealed = 0;
  uint64_t payload_bytes = 0;  // of contributions that were summed
  DurationHistogram gather;    // first to last contribution of a partition's round
  DurationHistogram sum;       // adding, per partition's round
  uint64_t audits_matched = 0;
  uint64_t audits_mismatched = 0;
  uint64_t audits_abandoned = 0;
  // By straggler: the time by which its contribution arrived after those of all other nodes.
  std::map<NodeId, uint64_t> delay_ns;

  void Add(const JobTotals& other);
};

class ShardJournal {
 public:
  ShardJournal();

  // The round that an event is about.
  struct Subject {
    JobId job;
    Generation generation;
    PartitionId partition;
    Round round;
  };
  // Of a relay nothing is noted: its own shard has the events of its nodes.
  void Received(const Subject& subject, NodeId node, uint32_t bytes, int64_t began, int64_t ended);
  // The round of `gathering` is sealed now.
  void Summed(const Subject& subject, const Gathering& gathering, JobTotals* totals);
  void Sent(const Subject& subject, NodeId node, uint32_t bytes, int64_t sealed);

  const TraceRing<SumEvent>& events() const { return events_; }

 private:
  static SumEvent EventOf(const Subject& subject, SumEvent::Kind kind, int64_t begin, int64_t end);

  TraceRing<SumEvent> events_;
};

}  // namespace addend
