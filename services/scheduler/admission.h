// The conditions for registering and draining: protocol versions, keys, secrets, settings, room for
// further jobs. Pure: reads only.
//
// Errors are for the operator of the member that is refused, with an exit status where the member
// should end (lib/base/failure.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"

namespace addend {

// The length of a member's key.
inline constexpr size_t kMemberKeyBytes = 32;
// The largest number of shards of a server.
inline constexpr uint32_t kMaxShards = 1024;

// Fields that every server or node of this version has to fill in.
absl::Status CheckServerRequest(const v1::RegisterServerRequest& request);
absl::Status CheckNodeRequest(const v1::RegisterNodeRequest& request);
// The same for any version: for members that a former scheduler has taken in.
absl::Status CheckServer(const v1::RegisterServerRequest& request);
absl::Status CheckNode(const v1::RegisterNodeRequest& request);

// A server against the job beside whose node it runs, or against the secret of CPU servers.
// `servers_digest`: of the proof that CPU servers must bring; empty: no proof. A colocated server's
// job may come after it; then it is checked before the job uses it.
absl::Status CheckServerOf(const v1::RegisterServerRequest& request, const Jobs& jobs,
                           const std::string& servers_digest);
// A node against its job: the secret, the settings of the other nodes, the frame protocol.
absl::Status CheckNodeOf(const v1::RegisterNodeRequest& request, const Job& job);
// RESOURCE_EXHAUSTED with the numbers, if there are too many jobs.
absl::Status CheckRoomForJob(const std::string& name, const Jobs& jobs);
// A drain, which the server itself may ask for, or a caller that knows the servers' secret.
absl::Status CheckDrain(const v1::DrainRequest& request, const Server& server,
                        const std::string& servers_digest);

// Whether the member is of this incarnation and has its key. Numbers are shown to every caller; the
// key is the member's own.
bool SpeaksFor(const v1::MemberId& member, const v1::RegisterServerRequest& info);
bool SpeaksFor(const v1::MemberId& member, const v1::RegisterNodeRequest& info);

}  // namespace addend
