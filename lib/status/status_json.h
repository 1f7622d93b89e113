// The scheduler's status as JSON, for programs. Field names are a contract: they are never removed
// or changed.
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

// The status of a standby scheduler. `leader` is empty if it is not known.
std::string StandbyJson(std::string_view version, std::string_view leader, double now_unix_s);

// The shortest possible time of the last 20 rounds of every node, divided by their actual time; at
// most 1. nullopt before the first round, and if no bandwidth is known.
std::optional<double> EfficiencyOf(const v1::JobStatus& job);
// The same, with the shortest possible time for the bytes on the wire; nullopt until these are
// measured, too.
std::optional<double> EncodedEfficiencyOf(const v1::JobStatus& job);
// The mean time of the last 20 rounds of every node; nullopt before the first round.
std::optional<double> RoundSeconds(const v1::JobStatus& job);

// "forming", "ready" or "failed".
std::string StateName(v1::JobState state);
// This server's part of all payload that servers have summed; 0 before the first sum. Comparable
// with the plan's share if there is a single job.
double TrafficShare(const v1::GetStatusResponse& status, const v1::ServerStatus& server);

}  // namespace addend
