// The senders to a partition.
#include "lib/summation/partition_ports.h"

#include "absl/strings/str_format.h"

namespace addend {

void StopReceiving(const JobState& job, const Partition& partition) {
  for (const auto& [id, node] : job.nodes) {
    if (!node->landing().IsReceiving(partition)) continue;
    node->Close(absl::UnavailableError("the partition is being recovered"));
  }
}

absl::Status IsAhead(const NodePort& port, const FrameHeader& header, const Partition& partition) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s pushed round %d of '%s' before round %d was sealed", port.Name(), header.round.value(),
      partition.spec().name.str(), partition.collector().round().value()));
}

}  // namespace addend
