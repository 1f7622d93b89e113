// What travels in the messages of a queue pair, little-endian: a head, and behind it, of frames and
// announcements, the frame's header, and a small payload. docs/wire-format.md has the same table.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/wire/frame.h"

namespace addend::rdma {

// Both ends must have the same; docs/wire-format.md.
inline constexpr uint32_t kProtocolVersion = 1;

enum class MessageKind : uint8_t {
  kFrame = 1,     // a frame with its whole payload
  kAnnounce = 2,  // a frame whose payload waits for a grant
  kGrant = 3,     // write the payload of frame `number` there, with its number as the immediate
  kDrop = 4,      // nobody wants the payload of frame `number`
  kCredit = 5,    // nothing but credits
};

struct MessageHead {
  MessageKind kind = MessageKind::kCredit;
  uint8_t lane = 0;      // kGrant: the queue pair to write through
  uint16_t credits = 0;  // so many more messages with frames may come
  uint32_t number = 0;   // kGrant, kDrop: of a frame, as they were sent, from 0
  uint64_t address = 0;  // kGrant
  uint32_t key = 0;      // kGrant
};

inline constexpr size_t kMessageHeadBytes = 24;
// Payloads up to this size travel in the message, copied at both ends: cheaper than asking where
// they belong.
inline constexpr size_t kInlinePayloadMax = 4096;
inline constexpr size_t kMessageBytesMax =
    kMessageHeadBytes + kFrameHeaderBytes + kInlinePayloadMax;

// Credit: so many messages with frames may be on their way, and so many payloads be announced and
// not yet written. Each end keeps receives for all of these, and for the grants and credits that
// answer them: a receiver that is not ready cannot happen.
inline constexpr int kFrameCredits = 32;
inline constexpr int kAnnouncedMax = 16;
inline constexpr int kControlMessages = kAnnouncedMax + 4;  // and two returns of credit, twice
inline constexpr int kReceives = kFrameCredits + kControlMessages + kAnnouncedMax;

// Returns the bytes written to `out`, which has room for kMessageBytesMax. `header`: of kFrame and
// kAnnounce; `payload`: of kFrame.
size_t EncodeMessage(const MessageHead& head, const FrameHeader* header, Bytes payload,
                     std::byte* out);

struct DecodedMessage {
  MessageHead head;
  FrameHeader header;  // of kFrame and kAnnounce
  Bytes payload;       // of kFrame; inside the bytes that were decoded
};
// DATA_LOSS, INVALID_ARGUMENT or FAILED_PRECONDITION: these bytes are no message.
absl::StatusOr<DecodedMessage> DecodeMessage(Bytes bytes);

}  // namespace addend::rdma
