// A shard's part in audits: summing partitions of others a second time.
#include <utility>

#include "absl/time/clock.h"
#include "lib/base/log.h"
#include "lib/summation/shard.h"

namespace addend {

// Who waits for a lost node, or knows of fewer, would wait for ever.
void Shard::Audit(const ShardJob& job, const FrameHeader& header,
                  std::unique_ptr<EarlyContribution> contribution) {
  if (!job.spec.lost.empty() || job.spec.failed) return;
  auditor_.OnContribution(header, job.spec.num_nodes, job.spec.local_size, std::move(contribution),
                          absl::Now());
}

void Shard::AuditDigest(const ShardJob& job, const FrameHeader& header) {
  if (!job.spec.lost.empty() || job.spec.failed) return;
  auditor_.OnDigest(header, job.spec.num_nodes, job.spec.local_size, absl::Now());
}

void Shard::OnAudited(const Auditor::Finding& finding) {
  const auto job = jobs_.find(finding.job);
  if (job == jobs_.end()) return;
  JobTotals& totals = job->second->totals;
  switch (finding.result) {
    case Auditor::Result::kMatch:
      ++totals.audits_matched;
      return;
    case Auditor::Result::kAbandoned:
      ++totals.audits_abandoned;
      return;
    case Auditor::Result::kMismatch:
      ++totals.audits_mismatched;
      spdlog::error("silent corruption in job '{}': {}", job->second->spec.name, finding.text);
      if (on_mismatch_) on_mismatch_(finding.text);
      return;
  }
}

}  // namespace addend
