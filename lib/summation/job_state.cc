// The check of a frame against the partition that it names.
#include "lib/summation/job_state.h"

#include "absl/strings/str_format.h"

namespace addend {

absl::Status CheckFit(const FrameHeader& header, const PartitionSpec& spec) {
  if (!spec.HasNode(NodeId(header.sender))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a %s of node %d, which has no rank that takes part in '%s' (%s)", Name(header.type),
        header.sender, spec.name.str(), spec.participants->Text()));
  }
  if (header.type != FrameType::kContribution && header.type != FrameType::kResult) {
    return absl::OkStatus();
  }
  const size_t expected = header.flags & kFlagEmpty ? 0 : spec.payload_bytes();
  if (header.dtype == spec.dtype && header.op == spec.op && RawBytesOf(header) == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "a %s of %d bytes (%s, %s) does not fit partition %d of '%s' (%d bytes, %s, %s)",
      Name(header.type), RawBytesOf(header), Name(header.dtype), Name(header.op),
      header.partition.index(), spec.name.str(), expected, Name(spec.dtype), Name(spec.op)));
}

absl::Status CheckContent(const FrameHeader& header, const EncodedBytes& payload,
                          const PartitionSpec& spec) {
  if (payload.raw() || IsWellFormed(payload, spec.dtype, spec.elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "a %s of node %d for partition %d of '%s' is encoded in %d bytes that are no encoding of %d "
      "elements",
      Name(header.type), header.sender, header.partition.index(), spec.name.str(),
      payload.bytes.size(), spec.elements));
}

}  // namespace addend
