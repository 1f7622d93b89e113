// The frame of the data path: a fixed little-endian header, then the payload. docs/wire-format.md
// has the same table. Pure: no I/O, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/base/types.h"

namespace addend {

inline constexpr uint32_t kFrameMagic = 0x444E4441;  // "ADND" on the wire
inline constexpr uint16_t kWireVersion = 5;
inline constexpr size_t kFrameHeaderBytes = 96;
// Upper limit of a payload; a header that announces more is malformed.
inline constexpr uint32_t kMaxPayloadBytes = 1u << 30;

enum class FrameType : uint8_t {
  kHello = 1,  // opens a link in both directions; partition = the shard asked for, payload = an
               // Opening (lib/auth/link_proof.h). The server's: its own proof
  kContribution = 2,  // node -> owner: the node's part of (partition, round)
  kResult = 3,        // owner -> node: the sum; node -> owner, if asked: the sum as it was sent
  kAck = 4,           // node -> owner, after a reset: the result of (partition, round) is held
  kMoved = 5,         // owner -> node: the partition has another owner from plan_version on
  kSendAgain =
      6,  // owner -> node: the contribution came before its turn and was dropped; its turn has come
  kRecover = 7,  // node -> owner: I hold `round`; the answer (kFlagReply): the newest that anyone
                 // holds
  kAborted = 8,  // owner -> node: (partition, round), to which the node has contributed, will have
                 // no result, on no node; kFlagEmpty: because the root of this broadcast is lost
  kGoaway =
      9,  // the link closes on purpose; detail = status code and exit status, payload = the reason
  kPing = 10,  // answered by a kPing with kFlagReply
  kBundle =
      11,       // detail = so many frames in one: the payload is their headers, then their payloads
  kStamp = 12,  // owner -> node, asynchronous mode: what is in the kResult that follows
  kAudit = 13,  // node -> another server: as its kContribution to the owner
  kAuditDigest = 14,  // node -> that server: detail = CRC-32C of the result, contributors = the
                      // owner's server id
  kChallenge = 15,    // owner -> node, after its HELLO: payload = the server's number to be signed
  kProof = 16,        // node -> owner, in answer: payload = the node's signature
};
std::string_view Name(FrameType type);

// Of a bundle: so many frames and so many bytes of their payloads together, at most; and of one
// payload. The frames are about different partitions.
inline constexpr size_t kMaxBundleFrames = 32;
inline constexpr size_t kMaxBundlePayloadBytes = 128 << 10;
inline constexpr size_t kMaxBundledBytes = 16 << 10;
inline constexpr bool MayBeBundled(FrameType type, size_t payload_bytes) {
  return type != FrameType::kHello && type != FrameType::kGoaway && type != FrameType::kBundle &&
         type != FrameType::kAudit && type != FrameType::kAuditDigest &&
         type != FrameType::kChallenge && type != FrameType::kProof &&
         payload_bytes <= kMaxBundledBytes;
}

inline constexpr uint16_t kFlagEmpty = 1;       // a contribution without data: counts, adds nothing
inline constexpr uint16_t kFlagPayloadCrc = 2;  // payload_crc32c is set
inline constexpr uint16_t kFlagReply = 4;
inline constexpr uint16_t kFlagResult = 8;      // of a kSendAgain: a result is wanted
inline constexpr uint16_t kFlagNonFinite = 16;  // of a kResult: an element is infinite or NaN
inline constexpr uint16_t kFlagEncrypt = 32;    // of a node's kHello: this link shall be encrypted
inline constexpr uint16_t kKnownFlags =
    kFlagEmpty | kFlagPayloadCrc | kFlagReply | kFlagResult | kFlagNonFinite | kFlagEncrypt;

// How the payload is written. Compressed encodings come later; a receiver refuses what it does not
// know.
enum class Encoding : uint8_t { kRaw = 0 };

struct FrameHeader {
  FrameType type = FrameType::kPing;
  uint16_t flags = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Encoding encoding = Encoding::kRaw;
  JobId job;
  Generation generation;
  uint32_t sender = 0;  // NodeId of a node, ServerId of a server
  Incarnation incarnation;
  PlanVersion plan_version;
  PartitionId partition;
  Round round;
  int32_t priority = 0;       // larger first; of a contribution, and then of its result
  uint32_t contributors = 0;  // of a result: the nodes in it; 0: not known to the one that sends it
  uint32_t payload_bytes = 0;
  uint32_t uncompressed_bytes = 0;
  uint32_t payload_crc32c = 0;
  uint32_t detail = 0;  // kGoaway: status code, exit status << 8; kBundle: frames
};

using EncodedHeader = std::array<std::byte, kFrameHeaderBytes>;

void EncodeHeader(const FrameHeader& header, EncodedHeader* out);

// DATA_LOSS: bad magic or checksum. FAILED_PRECONDITION (exit status 66): another wire version.
// INVALID_ARGUMENT: a type, flag, dtype, op, encoding or length that this version does not know.
absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

}  // namespace addend
