// The ports of the nodes, and relays, that contribute to a partition of a job. They belong to the
// shard's thread.
#pragma once

#include "absl/status/status.h"
#include "lib/summation/job_state.h"
#include "lib/summation/node_port.h"
#include "lib/summation/partition.h"

namespace addend {

// Calls `visit` with the number and the port of every sender that is connected, from
// JobState::FirstServed() on.
template <typename Visit>
void ForEachPort(const JobState& job, const Partition& partition, const Visit& visit) {
  job.nodes.ForEachFrom(job.FirstServed(), [&](NodeId id, NodePort* port) {
    const bool sends = IsRelay(id) ? partition.SpanOf(ServerOf(id)) != nullptr
                                   : partition.spec().HasNode(id) && !partition.RelayOf(id);
    if (sends) visit(id, port);
  });
}

// Closes the links that are receiving into the partition. A payload under way would land in the
// middle of the next sum; its sender sends it again.
void StopReceiving(const JobState& job, const Partition& partition);

// A sender has pushed a round that cannot have begun: INVALID_ARGUMENT.
absl::Status IsAhead(const NodePort& port, const FrameHeader& header, const Partition& partition);

}  // namespace addend
