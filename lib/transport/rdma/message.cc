#include "lib/transport/rdma/message.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend::rdma {
namespace {

// Byte offsets of the head's fields.
enum Offset : size_t {
  kKind = 0,
  kLane = 1,
  kCredits = 2,
  kNumber = 4,
  kAddress = 8,
  kKey = 16,
  kReserved = 20,  // 4 bytes, zero
};
static_assert(kReserved + 4 == kMessageHeadBytes);

absl::Status CheckPayload(const DecodedMessage& message) {
  const size_t expected =
      message.head.kind == MessageKind::kFrame ? message.header.payload_bytes : 0;
  if (message.payload.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a message has %d bytes of payload where its frame has %d",
                      message.payload.size(), expected));
}

}  // namespace

bool HasHeader(MessageKind kind) {
  return kind == MessageKind::kFrame || kind == MessageKind::kAnnounce;
}

size_t EncodeMessage(const MessageHead& head, const FrameHeader* header, Bytes payload,
                     std::byte* out) {
  std::memset(out, 0, kMessageHeadBytes);
  std::memcpy(out + kKind, &head.kind, sizeof(head.kind));
  std::memcpy(out + kLane, &head.lane, sizeof(head.lane));
  std::memcpy(out + kCredits, &head.credits, sizeof(head.credits));
  std::memcpy(out + kNumber, &head.number, sizeof(head.number));
  std::memcpy(out + kAddress, &head.address, sizeof(head.address));
  std::memcpy(out + kKey, &head.key, sizeof(head.key));
  if (header == nullptr) return kMessageHeadBytes;
  EncodedHeader encoded;
  EncodeHeader(*header, &encoded);
  std::memcpy(out + kMessageHeadBytes, encoded.data(), encoded.size());
  if (payload.empty()) return kMessageHeadBytes + kFrameHeaderBytes;
  std::memcpy(out + kMessageHeadBytes + kFrameHeaderBytes, payload.data(), payload.size());
  return kMessageHeadBytes + kFrameHeaderBytes + payload.size();
}

absl::StatusOr<DecodedMessage> DecodeMessage(Bytes bytes) {
  if (bytes.size() < kMessageHeadBytes) {
    return absl::DataLossError(absl::StrFormat("a message of %d bytes", bytes.size()));
  }
  DecodedMessage message;
  MessageHead& head = message.head;
  std::memcpy(&head.kind, bytes.data() + kKind, sizeof(head.kind));
  std::memcpy(&head.lane, bytes.data() + kLane, sizeof(head.lane));
  std::memcpy(&head.credits, bytes.data() + kCredits, sizeof(head.credits));
  std::memcpy(&head.number, bytes.data() + kNumber, sizeof(head.number));
  std::memcpy(&head.address, bytes.data() + kAddress, sizeof(head.address));
  std::memcpy(&head.key, bytes.data() + kKey, sizeof(head.key));
  if (head.kind < MessageKind::kFrame || head.kind > MessageKind::kCredit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("unknown message kind %d", static_cast<int>(head.kind)));
  }
  Bytes rest = bytes.subspan(kMessageHeadBytes);
  if (HasHeader(head.kind)) {
    if (rest.size() < kFrameHeaderBytes) return absl::DataLossError("a frame without its header");
    ADDEND_ASSIGN_OR_RETURN(message.header, DecodeHeader(rest.first<kFrameHeaderBytes>()));
    rest = rest.subspan(kFrameHeaderBytes);
  }
  message.payload = rest;
  ADDEND_RETURN_IF_ERROR(CheckPayload(message));
  return message;
}

}  // namespace addend::rdma
