// The scheduler's status for programs. Field names are a contract: they are only added to.
//
// Units are in the names (_s seconds, _bytes, _bps bits per second); shares are fractions of M, the
// bytes of all tensors. Incarnations are strings, because many JSON readers have only 53 bits for a
// number.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Each ends with a line feed.
std::string StatusJson(const v1::GetStatusResponse& status);  // {"version", ..., "servers": [...],
                                                              // "jobs": [...], "events": [...]}
std::string JobsJson(const v1::GetStatusResponse& status);    // [{"name", ...}, ...]
std::string NodesJson(const v1::GetStatusResponse& status);   // [{"job", "node_rank", ...}, ...]

// What a scheduler says that stands by. `leader`: empty if it is not known.
std::string StandbyJson(std::string_view version, std::string_view leader, double now_unix_s);

// The shortest time possible for the last 20 rounds of every node, divided by the time they took; 1
// at most. None as long as there was no round, or no bandwidth is known.
std::optional<double> EfficiencyOf(const v1::JobStatus& job);
// The mean of the last 20 rounds of every node; none as long as there was none.
std::optional<double> RoundSeconds(const v1::JobStatus& job);

// "forming", "ready" or "failed".
std::string StateName(v1::JobState state);
// Of all payload that servers have summed, the part that this one has; 0 as long as nothing is
// summed. Comparable with the plan's share where there is one job.
double TrafficShare(const v1::GetStatusResponse& status, const v1::ServerStatus& server);

}  // namespace addend
