// Computes the share of a job's bytes that every machine sums, so that all links finish at the same
// moment.
//
// Pure functions without I/O, clock or threads; the same input gives the same bits on every
// machine. Machines are numbered GPU machines first, then CPU machines. Bandwidths are bits per
// second, sizes bytes, times seconds.
//
// With n GPU machines, M bytes and machine bandwidths B: a GPU machine with share x carries
// M(1+(n-2)x) bytes each way, a CPU machine with share y carries n M y. The least time T under
// which the shares sum to 1 is the plan's t_opt.
//
// Encoded payloads are c M bytes of contributions and r M bytes of results. A GPU machine then
// sends M(c(1-x) + r(n-1)x) bytes and receives M(r(1-x) + c(n-1)x), a CPU machine receives c n M y
// and sends r n M y. docs/architecture.md, "Shares and the shortest time", derives the shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

// Bytes on the wire for each raw byte of payload, above 0 and at most 1. Encodings that leave bytes
// out without changing a bit of the result make them smaller than 1.
struct WireRatios {
  double contributions = 1;  // c
  double results = 1;        // r

  friend bool operator==(const WireRatios&, const WireRatios&) = default;
};

struct PlanInput {
  // Bandwidth of each machine's network, each direction. 0 means unknown: the machine counts as the
  // slowest known machine. If no bandwidth is known, all machines count as equal, and the plan has
  // shares but no times.
  std::vector<double> gpu_bps;
  std::vector<double> cpu_bps;
  // Whether the GPU machine runs a colocated summation server; empty: all do.
  std::vector<bool> gpu_sums;
  double bytes = 0;  // M
  // The memory limit of each server as the most bytes of M that it can take, GPU machines first.
  // Empty: no limits. Infinity: no limit for that server.
  std::vector<double> limit_bytes;
  WireRatios ratios;
};

// Input for equal machines, of which every GPU machine runs a colocated server.
PlanInput HomogeneousInput(size_t gpu_nodes, size_t cpu_nodes, double bytes, double bps);

// The resource that keeps the plan from being faster.
enum class Floor {
  kNoNetwork,  // a single GPU machine sums for itself
  kAllLinks,  // every link that may take more is busy to the end: another or a faster machine helps
  kOneLink,   // the own M bytes of a GPU machine: no further summation server helps
  // The same, if contributions and results have so different ratios that a machine without a share
  // would carry more in its busier direction.
  kOneShare,
};

struct Plan {
  std::vector<double> gpu_shares;  // fractions of M; all shares sum to 1
  std::vector<double> cpu_shares;
  Floor floor = Floor::kNoNetwork;
  // kOneLink, kOneShare: index of the GPU machine whose link is the floor.
  size_t floor_machine = 0;

  // Times of raw bytes, but for t_opt_encoded_s: a ring cannot send partial sums encoded. Absent
  // without a meaning: with a single GPU machine (nothing to communicate), without any known
  // bandwidth, and for the parameter server without CPU machines.
  std::optional<double> t_opt_s;          // of raw bytes, with the shares that suit them
  std::optional<double> t_opt_encoded_s;  // of the input's ratios, with the shares above
  std::optional<double>
      t_allreduce_s;  // a ring over the GPU machines, at the pace of the slowest link
  std::optional<double>
      t_ps_s;  // all summation on the CPU machines, shared out by their bandwidths
  std::optional<double> speedup_vs_allreduce;
  std::optional<double> speedup_vs_ps;
};

// INVALID_ARGUMENT for a malformed input, FAILED_PRECONDITION when no machine runs a summation
// server, RESOURCE_EXHAUSTED when the limits leave no room for M.
absl::StatusOr<Plan> MakePlan(const PlanInput& input);

// Names the floor of this plan in a sentence for people.
std::string ExplainFloor(const Plan& plan);

}  // namespace addend
