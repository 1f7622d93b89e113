// How much of what waits to be sent is handed on at a time: enough to keep a link full, and no
// more, since what is on its way cannot be overtaken, and lets some links run ahead of others.
#pragma once

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

}  // namespace addend
