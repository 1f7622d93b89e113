#include "lib/transport/traffic.h"

namespace addend {

Traffic TrafficOf(std::span<const Transport* const> transports) {
  Traffic total;
  for (const Transport* const transport : transports) {
    if (transport == nullptr) continue;
    const TransportStats& stats = transport->stats();
    total.bytes_sent += stats.bytes_sent;
    total.bytes_received += stats.bytes_received;
    total.sending += absl::Nanoseconds(stats.sending_ns.load());
    total.receiving += absl::Nanoseconds(stats.receiving_ns.load());
  }
  return total;
}

}  // namespace addend
