// Decides by measured costs whether an encoding takes less time than the bytes that it saves.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace addend {

// What the transports of a thread have sent and received since they started.
struct Traffic {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // The thread's time for moving those bytes to and from the network, encryption included. Zero
  // where a device does that.
  absl::Duration sending = absl::ZeroDuration();
  absl::Duration receiving = absl::ZeroDuration();
};

class EncodingCosts {
 public:
  // To be called every second or so. `busiest`: for how long the busiest link had bytes to send
  // since the last call.
  void NoteTraffic(const Traffic& total, absl::Duration busiest);
  // An encoding took so long for each byte of a payload that is sent `sends` times (at least once),
  // and the part `saved` of the payload does not travel.
  void NoteEncoding(double ns_per_byte, double saved, uint32_t sends = 1);
  // True until all of it is measured.
  bool IsWorthIt() const;

 private:
  Traffic noted_;
  // 0: not measured.
  double wire_ns_ = 0;  // of a byte that travels; a running mean
  double code_ns_ = 0;  // of a payload's byte that is sent, for both ends; a running median
  double saved_ = 0;    // a running mean
};

}  // namespace addend
