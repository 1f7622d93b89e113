// The check of a frame against the partition that it names.
#include "lib/summation/job_state.h"

#include "absl/strings/str_format.h"
#include "lib/base/sum_tree.h"

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

absl::Status CheckSumFits(const FrameHeader& header, const PartitionSpec& spec) {
  const SumSpan span = SpanIn(header);
  const bool empty = header.flags & kFlagEmpty;
  const size_t expected = empty ? 0 : spec.elements * AccumulatorSizeOf(spec.dtype);
  if (EntryOf(span, spec.nodes).has_value() && header.dtype == spec.dtype && header.op == spec.op &&
      header.payload_bytes == expected && header.contributors <= span.count &&
      (header.contributors == 0) == empty) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "a %s of %d bytes (%s, %s) of %d contributions of nodes %d to %d does not fit partition %d "
      "of '%s' (%d elements, %s, %s, %d nodes)",
      Name(header.type), header.payload_bytes, Name(header.dtype), Name(header.op),
      header.contributors, span.first, span.end() - 1, header.partition.index(), spec.name.str(),
      spec.elements, Name(spec.dtype), Name(spec.op), spec.nodes));
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
