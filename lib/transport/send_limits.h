// How much of what waits to be sent is handed on at a time: enough to keep a link full, and no
// more, since what is on its way cannot be overtaken, and lets some links run ahead of others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace addend {

struct SendLimits {
  // Handed to one link that copies, and not yet taken by it. Payloads passed by reference cost
  // nothing in flight and are not limited: a window would let early contributions, which the
  // receiver keeps, block later ones.
  size_t window_bytes = 256 << 10;
  // How far a link may run ahead of the last one of its convoy (convoy.h). Keeps the buffers of all
  // links filled up to networks of 100 Gbit/s and 80 us.
  uint64_t lead_bytes = 1 << 20;
};

// A millisecond of the machine's link for a window, and four of these for the lead: with 400 Mbit/s
// rounds end 2 to 4 % earlier than with the limits for fast links (docs/performance.md).
// `bandwidth_bps`: bits per second, each direction; 0: unknown.
inline SendLimits SendLimitsFor(double bandwidth_bps) {
  SendLimits limits;
  if (bandwidth_bps <= 0) return limits;
  limits.window_bytes = static_cast<size_t>(std::clamp<double>(
      bandwidth_bps / 8 / 1000, 64 << 10, static_cast<double>(limits.window_bytes)));
  limits.lead_bytes = 4 * limits.window_bytes;
  return limits;
}

}  // namespace addend
