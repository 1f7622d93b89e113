// The sentences' parts about open rounds.
#include "lib/summation/roll_call.h"

#include <algorithm>

namespace addend {

bool IsWaiting(const Partition& partition) {
  if (partition.aborted()) return false;
  const Ownership& ownership = partition.ownership();
  return partition.collector().IsOpen() || ownership.state() == Ownership::State::kRecovering ||
         (ownership.Sums() && ownership.AnyLacks());
}

OpenRoundInfo InfoOf(const JobState& job, const PartitionSpec& spec, const OpenRound& round,
                     absl::Time now) {
  OpenRoundInfo info;
  info.job = job.spec.id;
  info.tensor = spec.id.tensor();
  info.name = spec.name.str();
  info.partition = spec.id.index();
  info.round = round.collector().round();
  info.open_s = absl::ToDoubleSeconds(now - std::min(now, round.open_since()));
  return info;
}

OpenRoundInfo DescribeRound(const JobState& job, const Partition& partition, absl::Time now) {
  const Collector& collector = partition.collector();
  const Ownership& ownership = partition.ownership();
  const bool recovering = ownership.state() == Ownership::State::kRecovering;
  const bool lacking = ownership.Sums() && ownership.AnyLacks();
  OpenRoundInfo info = InfoOf(job, partition.spec(), partition.open_round(), now);
  info.state = ownership.Describe();
  for (uint32_t i = 0; i < job.spec.num_nodes; ++i) {
    const NodeId node(i);
    if (!collector.TakesPart(node)) continue;
    const bool there = recovering ? ownership.HasReported(node)
                       : lacking  ? node != ownership.Holder()
                                  : collector.HasPushed(node);
    (there ? info.pushed : info.missing).push_back(node);
  }
  return info;
}

}  // namespace addend
