#include "lib/wire/frame.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/wire/crc32c.h"

namespace addend {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "the header is written in the machine's order; a big-endian machine needs byte swaps here");

// Byte offsets of the header's fields.
enum Offset : size_t {
  kMagic = 0,
  kVersion = 4,
  kType = 6,
  kDTypeAt = 7,
  kOp = 8,
  kEncoding = 9,
  kFlags = 10,
  kSender = 12,
  kJob = 16,
  kGeneration = 24,
  kContributors = 28,
  kIncarnation = 32,
  kPlanVersion = 40,
  kPartition = 48,
  kRound = 56,
  kPriority = 64,
  kPayloadBytes = 68,
  kUncompressedBytes = 72,
  kPayloadCrc = 76,
  kDetail = 80,
  kReserved = 84,  // 8 bytes, zero
  kHeaderCrc = 92,
};
static_assert(kHeaderCrc + 4 == kFrameHeaderBytes);

template <typename T>
void Put(EncodedHeader* out, Offset at, T value) {
  std::memcpy(out->data() + at, &value, sizeof(value));
}

template <typename T>
T Get(std::span<const std::byte, kFrameHeaderBytes> bytes, Offset at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

absl::Status CheckEncoding(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const int encoding = Get<uint8_t>(bytes, kEncoding);
  if (encoding == static_cast<int>(Encoding::kRaw)) return absl::OkStatus();
  if (encoding != static_cast<int>(Encoding::kBlocks) ||
      Get<uint16_t>(bytes, kVersion) < kEncodingsSince) {
    return absl::InvalidArgumentError(absl::StrFormat("unknown payload encoding %d", encoding));
  }
  const auto type = static_cast<FrameType>(Get<uint8_t>(bytes, kType));
  if (!MayBeEncoded(type)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the payload of a %s is not encoded", Name(type)));
  }
  const uint32_t decoded = Get<uint32_t>(bytes, kUncompressedBytes);
  if (decoded > kMaxPayloadBytes || decoded <= Get<uint32_t>(bytes, kPayloadBytes)) {
    return absl::InvalidArgumentError(absl::StrFormat("an encoding of %d bytes in %d", decoded,
                                                      Get<uint32_t>(bytes, kPayloadBytes)));
  }
  return absl::OkStatus();
}

absl::Status CheckFields(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const int type = Get<uint8_t>(bytes, kType);
  const FrameType newest = Get<uint16_t>(bytes, kVersion) < kPartialSumsSince
                               ? FrameType::kProof
                               : FrameType::kPartialSum;
  if (type < static_cast<int>(FrameType::kHello) || type > static_cast<int>(newest)) {
    return absl::InvalidArgumentError(absl::StrFormat("unknown frame type %d", type));
  }
  if (Get<uint8_t>(bytes, kDTypeAt) >= kDTypes || Get<uint8_t>(bytes, kOp) >= kReduceOps) {
    return absl::InvalidArgumentError(absl::StrFormat("unknown dtype %d or operation %d",
                                                      Get<uint8_t>(bytes, kDTypeAt),
                                                      Get<uint8_t>(bytes, kOp)));
  }
  if (absl::Status status = CheckEncoding(bytes); !status.ok()) return status;
  const bool older = Get<uint16_t>(bytes, kVersion) < kEncodingsSince;
  if (Get<uint16_t>(bytes, kFlags) & ~(older ? kKnownFlags & ~kWireFlags : kKnownFlags)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("unknown flags 0x%x", Get<uint16_t>(bytes, kFlags)));
  }
  if (Get<uint32_t>(bytes, kPayloadBytes) > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a payload of %d bytes is over the limit of %d",
                        Get<uint32_t>(bytes, kPayloadBytes), kMaxPayloadBytes));
  }
  if (Get<uint64_t>(bytes, kReserved) != 0) {
    return absl::InvalidArgumentError("reserved bytes of a header are not 0");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(FrameType type) {
  constexpr std::string_view kNames[] = {
      "?",          "HELLO",   "CONTRIBUTION", "RESULT",    "ACK",   "MOVED",
      "SEND_AGAIN", "RECOVER", "ABORTED",      "GOAWAY",    "PING",  "BUNDLE",
      "STAMP",      "AUDIT",   "AUDIT_DIGEST", "CHALLENGE", "PROOF", "PARTIAL_SUM"};
  return kNames[static_cast<int>(type)];
}

void EncodeHeader(const FrameHeader& header, EncodedHeader* out) {
  out->fill(std::byte{0});
  Put(out, kMagic, kFrameMagic);
  Put(out, kVersion, header.version);
  Put(out, kType, static_cast<uint8_t>(header.type));
  Put(out, kDTypeAt, static_cast<uint8_t>(header.dtype));
  Put(out, kOp, static_cast<uint8_t>(header.op));
  Put(out, kEncoding, static_cast<uint8_t>(header.encoding));
  Put(out, kFlags, header.flags);
  Put(out, kSender, header.sender);
  Put(out, kJob, header.job.value());
  Put(out, kGeneration, header.generation.value());
  Put(out, kContributors, header.contributors);
  Put(out, kIncarnation, header.incarnation.value());
  Put(out, kPlanVersion, header.plan_version.value());
  Put(out, kPartition, header.partition.value());
  Put(out, kRound, header.round.value());
  Put(out, kPriority, header.priority);
  Put(out, kPayloadBytes, header.payload_bytes);
  Put(out, kUncompressedBytes, header.uncompressed_bytes);
  Put(out, kPayloadCrc, header.payload_crc32c);
  Put(out, kDetail, header.detail);
  Put(out, kHeaderCrc, Crc32c(Bytes(out->data(), kHeaderCrc)));
}

absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                         const VersionRange& spoken) {
  if (Get<uint32_t>(bytes, kMagic) != kFrameMagic) {
    return absl::DataLossError("the bytes are no frame of Addend (bad magic number)");
  }
  // Checked before the checksum, which another version may compute elsewhere, so that the peer gets
  // the true reason.
  if (const uint32_t version = Get<uint16_t>(bytes, kVersion); !spoken.Contains(version)) {
    return MakeFailure(
        FailureKind::kVersion,
        absl::StrFormat(
            "the peer speaks version %d of the frame protocol, but this process speaks %s: install "
            "releases of Addend that have a version in common (docs/operations.md)",
            version, Describe(spoken)));
  }
  if (Get<uint32_t>(bytes, kHeaderCrc) != Crc32c(Bytes(bytes.data(), kHeaderCrc))) {
    return absl::DataLossError("the checksum of a frame's header is wrong");
  }
  if (absl::Status status = CheckFields(bytes); !status.ok()) return status;
  FrameHeader header;
  header.version = Get<uint16_t>(bytes, kVersion);
  header.type = static_cast<FrameType>(Get<uint8_t>(bytes, kType));
  header.flags = Get<uint16_t>(bytes, kFlags);
  header.dtype = static_cast<DType>(Get<uint8_t>(bytes, kDTypeAt));
  header.op = static_cast<ReduceOp>(Get<uint8_t>(bytes, kOp));
  header.encoding = static_cast<Encoding>(Get<uint8_t>(bytes, kEncoding));
  header.job = JobId(Get<uint64_t>(bytes, kJob));
  header.generation = Generation(Get<uint32_t>(bytes, kGeneration));
  header.sender = Get<uint32_t>(bytes, kSender);
  header.incarnation = Incarnation(Get<uint64_t>(bytes, kIncarnation));
  header.plan_version = PlanVersion(Get<uint64_t>(bytes, kPlanVersion));
  header.partition = PartitionId(Get<uint64_t>(bytes, kPartition));
  header.round = Round(Get<uint64_t>(bytes, kRound));
  header.priority = Get<int32_t>(bytes, kPriority);
  header.contributors = Get<uint32_t>(bytes, kContributors);
  header.payload_bytes = Get<uint32_t>(bytes, kPayloadBytes);
  header.uncompressed_bytes = Get<uint32_t>(bytes, kUncompressedBytes);
  header.payload_crc32c = Get<uint32_t>(bytes, kPayloadCrc);
  header.detail = Get<uint32_t>(bytes, kDetail);
  return header;
}

}  // namespace addend
