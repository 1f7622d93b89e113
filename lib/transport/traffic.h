// What the transports of a thread have sent and received, from their statistics.
#pragma once

#include <span>

#include "lib/encoding/encoding_costs.h"
#include "lib/transport/transport.h"

namespace addend {

// Null pointers count as transports without traffic.
Traffic TrafficOf(std::span<const Transport* const> transports);

}  // namespace addend
