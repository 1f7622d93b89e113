// What a shard has counted, for metrics and for the trace.
#include "lib/summation/shard.h"
#include "lib/trace/clock.h"

namespace addend {

void Shard::NoteArrival(const NodeLink& link, Partition* partition, const FrameHeader& header,
                        int64_t began) {
  const int64_t now = TraceNow();
  partition->gathering().Note(link.node(), now);
  journal_.Received({.job = header.job,
                     .generation = header.generation,
                     .partition = header.partition,
                     .round = header.round},
                    link.node(), header.payload_bytes, began == 0 ? now : began, now);
}

void Shard::AddTotals(std::map<JobId, JobTotals>* totals) const {
  for (const auto& [id, job] : jobs_) {
    JobTotals& sum = (*totals)[id];
    sum.Add(job->totals);
    sum.name = job->spec.name;
  }
}

void Shard::AddNames(JobId wanted, std::map<TensorId, std::string>* names) const {
  const auto job = jobs_.find(wanted);
  if (job == jobs_.end()) return;
  for (const auto& [id, partition] : job->second->partitions) {
    names->emplace(id.tensor(), partition->spec().name);
  }
}

void Shard::AddLinks(LinkCounts* counts) const {
  for (const auto& link : links_) {
    if (link->job() == nullptr) continue;
    ++counts->by_transport[link->transport()];
    counts->queued += link->queued();
  }
}

}  // namespace addend
