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
#include "lib/base/sum_tree.h"
#include "lib/base/types.h"
#include "lib/base/version.h"
#include "lib/base/wire_format.h"

namespace addend {

inline constexpr uint32_t kFrameMagic = 0x444E4441;  // "ADND" on the wire
// The version to send if no older version was agreed.
inline constexpr uint16_t kWireVersion = protocol::kFrame.newest;
inline constexpr size_t kFrameHeaderBytes = 96;
// Upper limit of a payload; a header that announces more is malformed.
inline constexpr uint32_t kMaxPayloadBytes = 1u << 30;

enum class FrameType : uint8_t {
  // Opens a link, in both directions. From the node: partition = the shard asked for, payload = an
  // Opening (lib/auth/link_proof.h). From the server: payload = the server's own proof.
  kHello = 1,
  kContribution = 2,  // node -> owner: the node's part of (partition, round)
  kResult = 3,        // owner -> node: the sum; node -> owner, if asked: the sum as it was sent
  kAck = 4,    // node -> owner, after a reset: the node holds the result of (partition, round)
  kMoved = 5,  // owner -> node: the partition has another owner from plan_version on
  // owner -> node: asks again for a contribution that came before its turn and was dropped.
  kSendAgain = 6,
  // node -> owner: the node holds `round`; the answer (kFlagReply): the newest round held anywhere.
  kRecover = 7,
  // owner -> node: (partition, round), to which the node has contributed, will have no result, on
  // any node; kFlagEmpty: because the root of this broadcast is lost.
  kAborted = 8,
  // The link closes on purpose; detail = status code and exit status, payload = the reason.
  kGoaway = 9,
  kPing = 10,  // answered by a kPing with kFlagReply
  // detail = the number of frames in the bundle; the payload is their headers, then their payloads.
  kBundle = 11,
  kStamp = 12,  // owner -> node, asynchronous mode: the contributions in the kResult that follows
  // node -> another server: the same as its kContribution to the owner. Of a tensor of some ranks:
  // contributors = the nodes that take part, detail = their ranks that do.
  kAudit = 13,
  // node -> the server of kAudit: detail = CRC-32C of the result, contributors = the owner's server
  // id.
  kAuditDigest = 14,
  kChallenge = 15,  // owner -> node, after its HELLO: payload = the server's nonce to be signed
  kProof = 16,      // node -> owner, in answer: payload = the node's signature
  // relay -> owner, or another relay: the sum of the contributions of a span of nodes, elements of
  // the accumulator's type. detail = the span (SpanIn), contributors = those with data.
  kPartialSum = 17,
};
std::string_view Name(FrameType type);

// From this version of a link on, there are kPartialSum frames.
inline constexpr uint16_t kPartialSumsSince = 7;

// Limits of a bundle: the number of frames, the bytes of their payloads together, and the bytes of
// a single payload. The frames are of different partitions.
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
inline constexpr uint16_t kFlagResult = 8;      // in a kSendAgain: the owner asks for a result
inline constexpr uint16_t kFlagNonFinite = 16;  // in a kResult: an element is infinite or NaN
// in a node's kHello: asks for encryption of this link
inline constexpr uint16_t kFlagEncrypt = 32;
// In an AUDIT: the type to which the owner rounds the result (lib/base/wire_format.h).
inline constexpr uint16_t kFlagWireBFloat16 = 64;
inline constexpr uint16_t kFlagWireFloat16 = 128;
inline constexpr uint16_t kFlagWireInt8 = 256;
inline constexpr uint16_t kWireFlags = kFlagWireBFloat16 | kFlagWireFloat16 | kFlagWireInt8;
inline constexpr uint16_t kKnownFlags = kFlagEmpty | kFlagPayloadCrc | kFlagReply | kFlagResult |
                                        kFlagNonFinite | kFlagEncrypt | kWireFlags;
constexpr uint16_t WireFlagOf(WireDType dtype) {
  return dtype == WireDType::kSame
             ? 0
             : static_cast<uint16_t>(kFlagWireBFloat16 << (static_cast<int>(dtype) - 1));
}

// The encoding of the payload: the bytes as they are, or exact blocks (lib/reduce/block_codec.h),
// which decode to the same bytes. Senders choose frame by frame.
enum class Encoding : uint8_t { kRaw = 0, kBlocks = 1 };
// From this version of a link on, its payloads may be encoded.
inline constexpr uint16_t kEncodingsSince = 6;
// Whether payloads of these frames may be encoded.
inline constexpr bool MayBeEncoded(FrameType type) {
  return type == FrameType::kContribution || type == FrameType::kResult ||
         type == FrameType::kAudit;
}

struct FrameHeader {
  uint16_t version = kWireVersion;  // the link's version, from its HELLO (lib/wire/link_version.h)
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
  int32_t priority = 0;             // larger first; of a contribution, and later of its result
  uint32_t contributors = 0;        // of a result: its number of nodes; 0: unknown to the sender
  uint32_t payload_bytes = 0;       // on the wire
  uint32_t uncompressed_bytes = 0;  // decoded; more than payload_bytes unless the payload is raw
  uint32_t payload_crc32c = 0;
  uint32_t detail = 0;  // kGoaway: status code, exit status << 8; kBundle: frames; kPartialSum
};

// The span of a kPartialSum: fewer than 2^16 nodes, the first below 2^16.
inline uint32_t DetailOf(const SumSpan& span) { return span.first | (span.count - 1) << 16; }
inline SumSpan SpanIn(const FrameHeader& header) {
  return {.first = header.detail & 0xffff, .count = (header.detail >> 16) + 1};
}

// The size of the payload when it is decoded.
inline uint32_t RawBytesOf(const FrameHeader& header) {
  return header.encoding == Encoding::kRaw ? header.payload_bytes : header.uncompressed_bytes;
}

using EncodedHeader = std::array<std::byte, kFrameHeaderBytes>;

void EncodeHeader(const FrameHeader& header, EncodedHeader* out);

// DATA_LOSS: bad magic or checksum. FAILED_PRECONDITION (exit status 66): a version outside
// `spoken`. INVALID_ARGUMENT: a type, flag, dtype, op, encoding or length that this version does
// not know.
absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                         const VersionRange& spoken = protocol::kFrame);

}  // namespace addend
