// A payload has its number in its first and last bytes, which the receiver checks on arrival. The
// bytes between follow a pattern by slot and position, checked at the end for the last payloads.
#include "bench/verbs_payloads.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend::verbs {
namespace {

constexpr uint64_t kPage = 4096;
// The offset of an unaligned piece from its page's start.
constexpr uint64_t kOddOffset = 13;
constexpr uint64_t kStampBytes = 8;
// Contents repeat after a prime number of bytes, and begin at a different offset in every slot, so
// that a misplaced page is noticed.
constexpr uint64_t kPeriod = 65521, kSlotShift = 4099;

uint64_t WholePages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint64_t OffsetOf(const Settings& settings) { return settings.unaligned ? kOddOffset : 0; }

const std::vector<uint8_t>& Pattern() {
  static const std::vector<uint8_t>* const pattern = [] {
    auto* bytes = new std::vector<uint8_t>(kPeriod);
    uint32_t state = 1;
    for (uint8_t& byte : *bytes) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<uint8_t>(state >> 24);
    }
    return bytes;
  }();
  return *pattern;
}

// Calls `use(part, expected)` for all parts of `piece`, which begins at `position` of the slot's
// payload.
template <typename Use>
void ForPattern(std::span<uint8_t> piece, uint64_t slot, uint64_t position, Use use) {
  while (!piece.empty()) {
    const uint64_t from = (position + slot * kSlotShift) % kPeriod;
    const uint64_t size = std::min<uint64_t>(piece.size(), kPeriod - from);
    use(piece.first(size), Pattern().data() + from);
    piece = piece.subspan(size);
    position += size;
  }
}

bool IsStamp(const uint8_t* place, uint64_t number) {
  return std::memcmp(place, &number, kStampBytes) == 0;
}

}  // namespace

absl::StatusOr<Outgoing> Outgoing::Allocate(const Device& device, const Settings& settings) {
  Outgoing made;
  made.payload_bytes_ = settings.bytes;
  made.slots_ = SlotsOf(settings);
  made.entries_ = settings.entries;
  made.offset_ = OffsetOf(settings);
  const uint64_t longest = (settings.bytes + settings.entries - 1) / settings.entries;
  made.stride_ = WholePages(longest + made.offset_);
  ADDEND_ASSIGN_OR_RETURN(made.memory_,
                          Memory::Allocate(device, made.slots_ * made.entries_ * made.stride_));
  for (uint64_t slot = 0; slot < made.slots_; ++slot) {
    uint64_t position = 0;
    for (const std::span<uint8_t> piece : made.PiecesOf(slot)) {
      ForPattern(piece, slot, position, [](std::span<uint8_t> part, const uint8_t* pattern) {
        std::memcpy(part.data(), pattern, part.size());
      });
      position += piece.size();
    }
  }
  return made;
}

std::vector<std::span<uint8_t>> Outgoing::PiecesOf(uint64_t slot) const {
  std::vector<std::span<uint8_t>> pieces;
  for (uint64_t i = 0; i < entries_; ++i) {
    const uint64_t begin = payload_bytes_ * i / entries_, end = payload_bytes_ * (i + 1) / entries_;
    const uint64_t place = (slot * entries_ + i) * stride_ + offset_;
    pieces.push_back(memory_->bytes().subspan(place, end - begin));
  }
  return pieces;
}

std::span<ibv_sge> Outgoing::Stamp(uint64_t number) {
  const std::vector<std::span<uint8_t>> pieces = PiecesOf(number % slots_);
  const std::span<uint8_t> last = pieces.back();
  std::memcpy(pieces.front().data(), &number, kStampBytes);
  std::memcpy(last.data() + last.size() - kStampBytes, &number, kStampBytes);
  stamped_.clear();
  for (const std::span<uint8_t> piece : pieces) {
    stamped_.push_back({.addr = reinterpret_cast<uint64_t>(piece.data()),
                        .length = static_cast<uint32_t>(piece.size()),
                        .lkey = memory_->local_key()});
  }
  return stamped_;
}

uint64_t Incoming::StrideOf(const Settings& settings) {
  return WholePages(settings.bytes + OffsetOf(settings));
}

absl::StatusOr<Incoming> Incoming::Allocate(const Device& device, const Settings& settings) {
  Incoming made;
  made.payload_bytes_ = settings.bytes;
  made.slots_ = SlotsOf(settings);
  made.stride_ = StrideOf(settings);
  made.offset_ = OffsetOf(settings);
  ADDEND_ASSIGN_OR_RETURN(made.memory_, Memory::Allocate(device, made.slots_ * made.stride_));
  return made;
}

std::span<uint8_t> Incoming::SlotOf(uint64_t number) const {
  return memory_->bytes().subspan(number % slots_ * stride_ + offset_, payload_bytes_);
}

absl::Status Incoming::CheckStamp(uint64_t number) const {
  const std::span<uint8_t> slot = SlotOf(number);
  if (IsStamp(slot.data(), number) && IsStamp(slot.data() + slot.size() - kStampBytes, number)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrFormat(
      "payload %d was announced, but its first or last bytes are not there", number));
}

absl::Status Incoming::CheckLast(uint64_t count) const {
  for (uint64_t number = count - std::min(count, slots_); number < count; ++number) {
    ADDEND_RETURN_IF_ERROR(CheckStamp(number));
    const std::span<uint8_t> slot = SlotOf(number);
    bool same = true;
    ForPattern(slot.subspan(kStampBytes, slot.size() - 2 * kStampBytes), number % slots_,
               kStampBytes, [&same](std::span<uint8_t> part, const uint8_t* pattern) {
                 same = same && std::memcmp(part.data(), pattern, part.size()) == 0;
               });
    if (!same) {
      return absl::DataLossError(absl::StrFormat("payload %d arrived with other bytes", number));
    }
  }
  return absl::OkStatus();
}

}  // namespace addend::verbs
