// For whom a shard's partitions wait: for the roll-call, the log and the metrics.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "lib/base/log.h"
#include "lib/summation/shard.h"

namespace addend {
namespace {

constexpr absl::Duration kStallInterval = absl::Seconds(2);
constexpr size_t kRoundsChecked = 1000;
constexpr absl::Duration kAuditPatience = absl::Seconds(30);

}  // namespace

void Shard::CheckStalls() {
  loop_->RunAfter(kStallInterval, [this] { CheckStalls(); });
  auditor_.AbandonOlderThan(absl::Now() - kAuditPatience);
  CloseStrangers();
  std::vector<OpenRoundInfo> open;
  RollCall(JobId(), kRoundsChecked, &open);
  for (const std::string& stall : stalls_.Check(open)) spdlog::warn("{}", stall);
}

void Shard::RollCall(JobId wanted, size_t limit, std::vector<OpenRoundInfo>* out) const {
  const absl::Time now = absl::Now();
  for (const auto& [id, job] : jobs_) {
    if (wanted != JobId() && wanted != id) continue;
    for (const auto& [partition_id, partition] : job->partitions) {
      const Collector& collector = partition->collector();
      const Ownership& ownership = partition->ownership();
      const bool recovering = ownership.state() == Ownership::State::kRecovering;
      const bool lacking = ownership.Sums() && ownership.AnyLacks();
      if (!collector.IsOpen() && !recovering && !lacking) continue;
      if (partition->aborted()) continue;
      if (out->size() >= limit) return;
      OpenRoundInfo info;
      info.job = id;
      info.tensor = partition_id.tensor();
      info.name = partition->spec().name;
      info.partition = partition_id.index();
      info.round = collector.round();
      info.open_s = absl::ToDoubleSeconds(now - std::min(now, partition->open_since()));
      info.state = ownership.Describe();
      for (uint32_t i = 0; i < job->spec.num_nodes; ++i) {
        const NodeId node(i);
        if (!collector.TakesPart(node)) continue;
        const bool there = recovering ? ownership.HasReported(node)
                           : lacking  ? node != ownership.Holder()
                                      : collector.HasPushed(node);
        (there ? info.pushed : info.missing).push_back(node);
      }
      out->push_back(std::move(info));
    }
    RollCallLatest(*job, limit, out);
  }
}

// Only a partition that changes its owner waits for anybody.
void Shard::RollCallLatest(const ShardJob& job, size_t limit, std::vector<OpenRoundInfo>* out) {
  for (const auto& [id, partition] : job.latest) {
    const bool recovering = partition->state() == LatestPartition::State::kRecovering;
    const bool restoring = partition->state() == LatestPartition::State::kRestoring;
    if ((!recovering && !restoring) || partition->aborted()) continue;
    if (out->size() >= limit) return;
    OpenRoundInfo info;
    info.job = job.spec.id;
    info.tensor = id.tensor();
    info.name = partition->spec().name;
    info.partition = id.index();
    info.state = partition->Describe();
    info.round = Round(partition->stamp().updates);
    info.open_s = absl::ToDoubleSeconds(absl::Now() - partition->waiting_since());
    for (uint32_t i = 0; i < job.spec.num_nodes; ++i) {
      const NodeId node(i);
      if (job.spec.lost.contains(node)) continue;
      const bool there = recovering ? partition->HasReported(node) : node != partition->Holder();
      (there ? info.pushed : info.missing).push_back(node);
    }
    out->push_back(std::move(info));
  }
}

}  // namespace addend
