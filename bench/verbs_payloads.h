// The payloads in the memory of an end: a ring of slots, with contents that the receiver knows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/verbs_queue_pair.h"
#include "bench/verbs_settings.h"

namespace addend::verbs {

// Twice the payloads that the NIC has at a time, so that it has work while the receiver checks
// arrived payloads.
inline uint64_t SlotsOf(const Settings& settings) { return uint64_t{2} * settings.depth; }

// A slot is sent from `entries` pieces of nearly the same length, each on separate pages.
class Outgoing {
 public:
  static absl::StatusOr<Outgoing> Allocate(const Device& device, const Settings& settings);
  // Writes the number into the first and last bytes of its slot, which the NIC must not be using.
  // Valid until the next call.
  std::span<ibv_sge> Stamp(uint64_t number);

 private:
  std::vector<std::span<uint8_t>> PiecesOf(uint64_t slot) const;

  std::unique_ptr<Memory> memory_;
  uint64_t payload_bytes_ = 0, slots_ = 0, entries_ = 0;
  uint64_t stride_ = 0, offset_ = 0;  // between pieces, and of a piece from its page's start
  std::vector<ibv_sge> stamped_;
};

// A slot is received as a single piece.
class Incoming {
 public:
  static absl::StatusOr<Incoming> Allocate(const Device& device, const Settings& settings);
  // The address for the sender: slot i is at address() + i * StrideOf(settings).
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_->bytes().data()) + offset_; }
  uint32_t remote_key() const { return memory_->remote_key(); }
  static uint64_t StrideOf(const Settings& settings);

  // DATA_LOSS if this payload's first and last bytes are not in its slot.
  absl::Status CheckStamp(uint64_t number) const;
  // Checks all bytes of the last payloads, of `count` in all.
  absl::Status CheckLast(uint64_t count) const;

 private:
  std::span<uint8_t> SlotOf(uint64_t number) const;

  std::unique_ptr<Memory> memory_;
  uint64_t payload_bytes_ = 0, slots_ = 0, stride_ = 0, offset_ = 0;
};

}  // namespace addend::verbs
