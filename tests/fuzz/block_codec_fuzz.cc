// Payloads that claim to be encodings: each is refused, or decodes within its memory, to the same
// elements in one piece as in several. And elements of any content: an encoding of them decodes to
// their bits.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "lib/reduce/block_codec.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"

namespace addend::fuzz {
namespace {

constexpr size_t kElementsMost = 600;

std::vector<std::byte> BytesOf(std::string_view text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return std::vector<std::byte>(begin, begin + text.size());
}

void Decode(DType dtype, uint64_t elements, const std::vector<std::byte>& payload) {
  if (!IsWellFormed(dtype, elements, payload)) return;
  std::vector<std::byte> whole(elements * SizeOf(dtype));
  DecodeBlocks(dtype, elements, payload, whole.data());
  std::vector<std::byte> parts(whole.size());
  BlockReader reader(dtype, elements, payload);
  for (uint64_t at = 0; at < elements; at += 2 * kBlockElements) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(2 * kBlockElements, elements - at));
    reader.Read(count, parts.data() + at * SizeOf(dtype));
  }
  FUZZ_CHECK(parts == whole, "the elements do not depend on the pieces in which they are read");
}

void EncodeAndDecode(DType dtype, std::vector<std::byte> raw) {
  raw.resize(raw.size() / SizeOf(dtype) * SizeOf(dtype));
  const uint64_t elements = raw.size() / SizeOf(dtype);
  std::vector<std::byte> encoded(EncodedBytesMax(dtype, elements));
  encoded.resize(EncodeBlocks(dtype, raw.data(), elements, encoded.size(), encoded));
  if (encoded.empty()) return;
  FUZZ_CHECK(IsWellFormed(dtype, elements, encoded), "an encoding is well-formed");
  std::vector<std::byte> again(raw.size());
  DecodeBlocks(dtype, elements, encoded, again.data());
  FUZZ_CHECK(again == raw, "an encoding keeps every bit");
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend;
  fuzz::Input input(data, size);
  const auto dtype = static_cast<DType>(input.Take() % kDTypes);
  const bool encode = input.Flag();
  const uint64_t elements = input.Number<uint16_t>(2) % fuzz::kElementsMost;
  const auto rest = fuzz::BytesOf(input.Bytes(size));
  encode ? fuzz::EncodeAndDecode(dtype, rest) : fuzz::Decode(dtype, elements, rest);
  return 0;
}
