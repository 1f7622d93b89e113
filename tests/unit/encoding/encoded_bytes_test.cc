#include "lib/encoding/encoded_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "lib/reduce/block_codec.h"

namespace addend {
namespace {

// Elements that are bfloat16 numbers, except for the `raw` last.
std::vector<float> Elements(size_t count, size_t raw = 0) {
  std::vector<float> elements;
  for (size_t i = 0; i < count; ++i) {
    elements.push_back(static_cast<float>(i % 200 + 1) * (i + raw < count ? 0.5f : 0.1f));
  }
  return elements;
}

Bytes BytesOf(const std::vector<float>& elements) {
  return std::as_bytes(std::span<const float>(elements));
}

std::vector<std::byte> Encoded(const std::vector<float>& elements) {
  std::vector<std::byte> room(EncodedBytesMax(DType::kFloat32, elements.size()));
  room.resize(EncodeBlocks(DType::kFloat32, elements.data(), elements.size(), room.size(), room));
  return room;
}

TEST(EncodedBytesTest, RawPayloadsFitTheirSize) {
  const auto elements = Elements(10);
  EXPECT_TRUE(IsWellFormed({BytesOf(elements)}, DType::kFloat32, 10));
  EXPECT_FALSE(IsWellFormed({BytesOf(elements)}, DType::kFloat32, 9));
  EXPECT_FALSE(IsWellFormed({BytesOf(elements), Encoding::kBlocks}, DType::kFloat32, 10));
}

TEST(EncodedBytesTest, DecodingWritesTheElements) {
  const auto elements = Elements(1000, 100);
  const auto encoded = Encoded(elements);
  std::vector<float> out(1000);
  EXPECT_EQ(Decode({encoded, Encoding::kBlocks}, DType::kFloat32, 1000, out.data()), 4000u);
  EXPECT_EQ(out, elements);
  out.assign(1000, 0);
  EXPECT_EQ(Decode({BytesOf(elements)}, DType::kFloat32, 1000, out.data()), 4000u);
  EXPECT_EQ(out, elements);
}

TEST(EncodedBytesTest, ARawPayloadInItsPlaceIsNotCopied) {
  auto elements = Elements(10);
  EXPECT_EQ(Decode({BytesOf(elements)}, DType::kFloat32, 10, elements.data()), 0u);
}

TEST(EncodedBytesTest, RawPayloadsAreVisitedOnce) {
  const auto a = Elements(5000), b = Elements(5000);
  int visits = 0;
  const std::vector<EncodedBytes> payloads = {{BytesOf(a)}, {BytesOf(b)}};
  ForEachTile(payloads, DType::kFloat32, 5000, [&](size_t first, size_t count, auto inputs) {
    ++visits;
    EXPECT_EQ(first, 0u);
    EXPECT_EQ(count, 5000u);
    EXPECT_EQ(inputs[0], a.data());
    EXPECT_EQ(inputs[1], b.data());
  });
  EXPECT_EQ(visits, 1);
}

TEST(EncodedBytesTest, MixedPayloadsAreVisitedTileByTile) {
  const auto a = Elements(5001), b = Elements(5001, 300), c = Elements(5001, 5001);
  const auto encoded_a = Encoded(a), encoded_b = Encoded(b);
  const std::vector<EncodedBytes> payloads = {
      {encoded_a, Encoding::kBlocks}, {BytesOf(c)}, {encoded_b, Encoding::kBlocks}};
  size_t next = 0;
  ForEachTile(payloads, DType::kFloat32, 5001, [&](size_t first, size_t count, auto inputs) {
    EXPECT_EQ(first, next);
    EXPECT_EQ(std::memcmp(inputs[0], &a[first], count * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(inputs[1], &c[first], count * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(inputs[2], &b[first], count * sizeof(float)), 0);
    next = first + count;
  });
  EXPECT_EQ(next, 5001u);
}

TEST(EncodedBytesTest, NothingIsVisitedWithoutElements) {
  ForEachTile({}, DType::kFloat32, 0, [&](size_t, size_t, auto) { ADD_FAILURE(); });
}

}  // namespace
}  // namespace addend
