// Limits of the bytes handed on for sending at a time: enough to keep a link full, and no more,
// because bytes on their way cannot be overtaken and let some links run ahead of others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace addend {

struct SendLimits {
  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

  // Bytes handed to a link that copies and not yet taken by it. Payloads passed by reference cost
  // nothing in flight and are not limited: a window would let early contributions, which the
  // receiver keeps, block later contributions.
  size_t window_bytes = 256 << 10;
  // How far a link may run ahead of the last link of its convoy (convoy.h). Keeps the buffers of
  // all links filled up to networks of 100 Gbit/s and 80 us.
  uint64_t lead_bytes = 1 << 20;
  // Limits of the unacknowledged bytes on all links of the machine together while the machine sends
  // only contributions, or only results: each link gets a part in proportion to its load
  // (Link::LimitInFlight). Equal parts, which TCP would give the links, let the queues of the
  // network fill with bytes that are not needed yet. Results get more than contributions:
  // contributions that run ahead of the other nodes' only keep the results behind them waiting, and
  // the nodes drift apart.
  size_t contributions_in_flight = kUnlimited;
  size_t results_in_flight = kUnlimited;
  // A limit of a node's contributions whose results are awaited (contribution_pace.h): this, or so
  // much for each link, whichever is more. Links take turns, so all of them have some partitions on
  // their way.
  size_t contributions_awaited = kUnlimited;
  size_t awaited_for_each_link = 40 << 10;
};

// `part` of `in_flight`.
inline size_t PartInFlight(size_t in_flight, double part) {
  if (in_flight == SendLimits::kUnlimited) return in_flight;
  return static_cast<size_t>(static_cast<double>(in_flight) * part);
}

// The bytes that a machine sends in a round on the link that a summation server uses, of a job of
// `job_bytes`, of which the server sums `own_bytes`, and sends `result_bytes` of results to all
// nodes together. A colocated server shares the link with its node, which sends all contributions
// except those that are summed right there.
inline double BytesSentBeside(bool colocated, uint64_t job_bytes, uint64_t own_bytes,
                              uint64_t result_bytes) {
  const auto results = static_cast<double>(result_bytes);
  if (!colocated) return results;
  return static_cast<double>(job_bytes) - 2 * static_cast<double>(own_bytes) + results;
}

// The limits for a machine whose link has `bandwidth_bps` (bits per second, each direction; 0:
// unknown). Slow links get smaller limits, in proportion to their bandwidth: with 400 Mbit/s rounds
// end 2 to 7 % earlier than with the limits for fast links (docs/performance.md).
inline SendLimits SendLimitsFor(double bandwidth_bps) {
  constexpr double kWindowSeconds = 0.5e-3, kSlowBps = 2e9;
  constexpr double kContributionsSeconds = 10e-3, kResultsSeconds = 22e-3;
  constexpr double kAwaitedSeconds = 24e-3;
  SendLimits limits;
  if (bandwidth_bps <= 0) return limits;
  const double bytes_per_second = bandwidth_bps / 8;
  limits.window_bytes = static_cast<size_t>(std::clamp<double>(
      bytes_per_second * kWindowSeconds, 16 << 10, static_cast<double>(limits.window_bytes)));
  limits.lead_bytes = 4 * limits.window_bytes;
  if (bandwidth_bps < kSlowBps) {
    limits.contributions_in_flight = static_cast<size_t>(bytes_per_second * kContributionsSeconds);
    limits.results_in_flight = static_cast<size_t>(bytes_per_second * kResultsSeconds);
    limits.contributions_awaited = static_cast<size_t>(bytes_per_second * kAwaitedSeconds);
  }
  return limits;
}

}  // namespace addend
