// The events of a round, and the totals that follow from them.
#include "lib/summation/shard_journal.h"

#include <algorithm>
#include <limits>

#include "lib/trace/clock.h"

namespace addend {
namespace {

// Of a shard: with 4 nodes the last 7,000 rounds of partitions, in 4 MB.
constexpr size_t kEventsKept = 1 << 16;

}  // namespace

void JobTotals::Add(const JobTotals& other) {
  name = other.name;
  partitions_sealed += other.partitions_sealed;
  payload_bytes += other.payload_bytes;
  audits_matched += other.audits_matched;
  audits_mismatched += other.audits_mismatched;
  audits_abandoned += other.audits_abandoned;
  gather.Add(other.gather);
  sum.Add(other.sum);
  for (const auto& [node, ns] : other.delay_ns) delay_ns[node] += ns;
}

ShardJournal::ShardJournal() : events_(kEventsKept) {}

SumEvent ShardJournal::EventOf(const Subject& subject, SumEvent::Kind kind, int64_t begin,
                               int64_t end) {
  return {.job = subject.job,
          .generation = subject.generation,
          .partition = subject.partition,
          .round = subject.round,
          .begin = begin,
          .end = end,
          .kind = kind};
}

void ShardJournal::Received(const Subject& subject, NodeId node, uint32_t bytes, int64_t began,
                            int64_t ended) {
  if (IsRelay(node)) return;
  SumEvent event = EventOf(subject, SumEvent::Kind::kReceived, began, ended);
  event.node = node;
  event.bytes = bytes;
  events_.Add(event);
}

void ShardJournal::Summed(const Subject& subject, const Gathering& gathering, JobTotals* totals) {
  SumEvent event = EventOf(subject, SumEvent::Kind::kSummed, gathering.last, TraceNow());
  event.busy_ns = static_cast<uint32_t>(
      std::min<int64_t>(gathering.busy_ns, std::numeric_limits<uint32_t>::max()));
  events_.Add(event);
  ++totals->partitions_sealed;
  totals->gather.Observe(gathering.last - gathering.first);
  totals->sum.Observe(gathering.busy_ns);
  // A single contribution; or those of several nodes came last, and only their server knows whose.
  if (gathering.before_last == 0 || IsRelay(gathering.last_node)) return;
  totals->delay_ns[gathering.last_node] +=
      static_cast<uint64_t>(std::max<int64_t>(gathering.last - gathering.before_last, 0));
}

void ShardJournal::Sent(const Subject& subject, NodeId node, uint32_t bytes, int64_t sealed) {
  if (IsRelay(node)) return;
  SumEvent event = EventOf(subject, SumEvent::Kind::kSent, sealed, TraceNow());
  event.node = node;
  event.bytes = bytes;
  events_.Add(event);
}

}  // namespace addend
