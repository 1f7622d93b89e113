// The messages of a queue pair, little-endian: a head; in frames and announcements also the frame's
// header; in frames also a small payload. docs/wire-format.md has the same table. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/wire/frame.h"

namespace addend::rdma {

enum class MessageKind : uint8_t {
  kFrame = 1,     // a frame with its whole payload
  kAnnounce = 2,  // a frame whose payload waits for a grant
  kGrant = 3,  // write the payload of frame `number` to `address`, with its number as the immediate
  kDrop = 4,   // the payload of frame `number` is not wanted
  kCredit = 5,  // credits only
};

// True if a frame's header follows the head.
bool HasHeader(MessageKind kind);

struct MessageHead {
  MessageKind kind = MessageKind::kCredit;
  uint8_t lane = 0;      // kGrant: the queue pair to write through
  uint16_t credits = 0;  // returned credit: the peer may send as many more messages with frames
  uint32_t number = 0;   // kGrant, kDrop: the frame's number, in the order of sending, from 0
  uint64_t address = 0;  // kGrant
  uint32_t key = 0;      // kGrant
};

inline constexpr size_t kMessageHeadBytes = 24;
// Payloads up to this size travel in the message, copied at both ends: cheaper than a grant.
inline constexpr size_t kInlinePayloadMax = 4096;
inline constexpr size_t kMessageBytesMax =
    kMessageHeadBytes + kFrameHeaderBytes + kInlinePayloadMax;

// Flow control: kFrameCredits messages with frames may be on their way, and kAnnouncedMax payloads
// may be announced and not yet written. Each end posts receives for all of these, and for the
// grants and credits that answer them, so that a receive is always ready.
inline constexpr int kFrameCredits = 32;
inline constexpr int kAnnouncedMax = 16;
inline constexpr int kControlMessages = kAnnouncedMax + 4;  // and two returns of credit, twice
inline constexpr int kReceives = kFrameCredits + kControlMessages + kAnnouncedMax;

// Writes a message to `out`, which has room for kMessageBytesMax, and returns its bytes. `header`:
// for kFrame and kAnnounce; `payload`: for kFrame.
size_t EncodeMessage(const MessageHead& head, const FrameHeader* header, Bytes payload,
                     std::byte* out);

struct DecodedMessage {
  MessageHead head;
  FrameHeader header;  // for kFrame and kAnnounce
  Bytes payload;       // for kFrame; inside the decoded bytes
};
// DATA_LOSS, INVALID_ARGUMENT or FAILED_PRECONDITION: the bytes are not a valid message.
absl::StatusOr<DecodedMessage> DecodeMessage(Bytes bytes);

}  // namespace addend::rdma
