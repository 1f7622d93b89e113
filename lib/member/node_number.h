// Asks the scheduler which node of its job this machine is, so that neighbours in the network get
// numbers next to each other.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/member/member.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// `node`: as it will register, but for node_rank; something listens at its control address, so that
// others can measure the way to it. Blocks until all nodes of the job have asked and have measured
// the network between them, and names every few seconds the reason for the wait. A failure of
// kTemporary after `patience`, of kUnreachable after options.connect_timeout without an answer.
// CANCELLED: options.give_up.
absl::StatusOr<uint32_t> AskForNodeRank(const MemberOptions& options, absl::Duration patience,
                                        v1::RegisterNodeRequest node);

}  // namespace addend
