// Two things pass on every byte: the network, and the processors of its two ends, which copy it
// between the program and the kernel. The slower of them is what a byte costs. The processors
// decide on loopback and on very fast networks. The peer's processor is not seen; but each machine
// receives, too, and takes its own time for its peer's.
#include "lib/encoding/encoding_costs.h"

#include <algorithm>
#include <utility>

namespace addend {
namespace {

// Of a new measurement in a running mean.
constexpr double kSavedWeight = 0.05;
constexpr double kWireWeight = 0.3;
// A running median moves by this factor towards each measurement.
constexpr double kMedianStep = 1.05;
// The receiver decodes about this much faster than the sender encodes.
constexpr double kDecodeCost = 0.3;
// Fewer bytes are no measurement.
constexpr uint64_t kEnough = 1 << 20;

void Mean(double* mean, double value, double weight) {
  *mean = *mean == 0 ? value : *mean + weight * (value - *mean);
}

// A mean would take the few encodings in which another thread got the processor, which seem to
// take a hundred times as long, for the cost of encoding.
void Median(double* median, double value) {
  if (*median == 0) *median = value;
  *median = value > *median ? std::min(value, *median * kMedianStep)
                            : std::max(value, *median / kMedianStep);
}

double PerByte(absl::Duration time, uint64_t bytes) {
  return absl::ToDoubleNanoseconds(time) / static_cast<double>(bytes);
}

}  // namespace

void EncodingCosts::NoteTraffic(const Traffic& total, absl::Duration busiest) {
  const Traffic former = std::exchange(noted_, total);
  const uint64_t sent = total.bytes_sent - former.bytes_sent;
  const uint64_t received = total.bytes_received - former.bytes_received;
  if (sent < kEnough) return;
  const double sending = PerByte(total.sending - former.sending, sent);
  const double receiving =
      received < kEnough ? sending : PerByte(total.receiving - former.receiving, received);
  const double cost = std::max(PerByte(busiest, sent), sending + receiving);
  if (cost > 0) Mean(&wire_ns_, cost, kWireWeight);
}

void EncodingCosts::NoteEncoding(double ns_per_byte, double saved, uint32_t sends) {
  Median(&code_ns_, ns_per_byte * (1.0 / sends + kDecodeCost));
  Mean(&saved_, saved, kSavedWeight);
}

bool EncodingCosts::IsWorthIt() const {
  if (wire_ns_ == 0 || code_ns_ == 0) return true;
  return saved_ * wire_ns_ > code_ns_;
}

}  // namespace addend
