#include "lib/reduce/block_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "lib/reduce/half.h"

namespace addend {
namespace {

// Runs every test of this file with every vector target that this machine has.
class BlockCodecTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(Targets, BlockCodecTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

constexpr DType kAll[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                          DType::kBFloat16, DType::kInt32,   DType::kInt64};

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(T));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

std::vector<float> Floats(size_t count, float value) { return std::vector<float>(count, value); }

// The encoding in memory of exactly its size, so that a sanitizer notices a read behind it. Empty:
// the encoding would be longer than `limit`.
std::vector<std::byte> Encode(DType dtype, const std::vector<std::byte>& raw,
                              size_t limit = SIZE_MAX / 2) {
  const size_t elements = raw.size() / SizeOf(dtype);
  std::vector<std::byte> room(EncodedBytesMax(dtype, elements));
  room.resize(EncodeBlocks(dtype, raw.data(), elements, std::min(limit, room.size()), room));
  room.shrink_to_fit();
  return room;
}

void ExpectSame(DType dtype, const std::vector<std::byte>& raw, const std::string& about = "") {
  const size_t elements = raw.size() / SizeOf(dtype);
  const std::vector<std::byte> encoded = Encode(dtype, raw);
  if (encoded.empty()) return;  // a long partition without gain
  ASSERT_TRUE(IsWellFormed(dtype, elements, encoded)) << Name(dtype) << about;
  std::vector<std::byte> decoded(raw.size());
  DecodeBlocks(dtype, elements, encoded, decoded.data());
  ASSERT_TRUE(decoded == raw) << Name(dtype) << " x " << elements << about;
}

size_t SizeOfFloats(const std::vector<float>& elements) {
  ExpectSame(DType::kFloat32, BytesOf(elements));
  return Encode(DType::kFloat32, BytesOf(elements)).size();
}

// ---- sizes, of a block and the byte with its kind ----

TEST_P(BlockCodecTest, PositiveZerosTakeNoBytes) { EXPECT_EQ(SizeOfFloats(Floats(64, 0.0f)), 1u); }

TEST_P(BlockCodecTest, ABFloat16NumberTakesTwoBytes) {
  std::vector<float> elements;
  for (int i = 0; i < 64; ++i) elements.push_back(static_cast<float>(i + 129) * 0x1p-9f);
  EXPECT_EQ(SizeOfFloats(elements), 1 + 64 * 2u);
}

TEST_P(BlockCodecTest, AFloat16NumberTakesTwoBytes) {
  std::vector<float> elements;
  for (int i = 0; i < 64; ++i)
    elements.push_back(HalfToFloat(static_cast<uint16_t>(0x3001 + 2 * i)));
  elements[5] = HalfToFloat(0x0001);  // denormal
  elements[6] = HalfToFloat(0x83ff);
  elements[7] = std::numeric_limits<float>::infinity();
  elements[8] = -0.0f;
  EXPECT_EQ(SizeOfFloats(elements), 1 + 64 * 2u);
}

TEST_P(BlockCodecTest, AZeroLastByteIsLeftOut) {
  std::vector<float> elements;
  for (uint32_t i = 0; i < 64; ++i) {
    elements.push_back(std::bit_cast<float>(0x3f000100u + (i << 8)));
  }
  EXPECT_EQ(SizeOfFloats(elements), 1 + 64 * 3u);
}

TEST_P(BlockCodecTest, SmallMultiplesOfAPowerOfTwoTakeAByte) {
  std::vector<float> elements;
  for (int i = 0; i < 64; ++i) elements.push_back(static_cast<float>(2 * i - 63) * 0x1p-70f);
  EXPECT_EQ(SizeOfFloats(elements), 1 + 1 + 64u);
}

TEST_P(BlockCodecTest, SignsOfACommonMagnitudeTakeABit) {
  std::vector<float> elements;
  for (int i = 0; i < 64; ++i) elements.push_back(i % 3 == 0 ? -0.1f : 0.1f);
  EXPECT_EQ(SizeOfFloats(elements), 1 + 8 + 4u);
}

TEST_P(BlockCodecTest, FewElementsTakeABitmapAndThemselves) {
  std::vector<float> elements = Floats(64, 0.0f);
  elements[3] = 0.1f;
  elements[63] = -0.3f;
  EXPECT_EQ(SizeOfFloats(elements), 1 + 8 + 2 * 4u);
}

TEST_P(BlockCodecTest, OtherNumbersStayAsTheyAre) {
  std::vector<float> elements;
  for (int i = 0; i < 64; ++i) elements.push_back(0.1f * static_cast<float>(i + 1));
  EXPECT_EQ(SizeOfFloats(elements), 1 + 64 * 4u);
}

TEST_P(BlockCodecTest, IntegersTakeTheNarrowestTypeThatHoldsThem) {
  const auto size = [](auto first, auto last) {
    std::vector<decltype(first)> elements(64, last);
    elements[0] = first;
    const DType dtype = sizeof(first) == 8 ? DType::kInt64 : DType::kInt32;
    ExpectSame(dtype, BytesOf(elements));
    return Encode(dtype, BytesOf(elements)).size();
  };
  EXPECT_EQ(size(int32_t{-128}, int32_t{127}), 1 + 64u);
  EXPECT_EQ(size(int32_t{-129}, int32_t{127}), 1 + 128u);
  EXPECT_EQ(size(int32_t{-32768}, int32_t{32767}), 1 + 128u);
  EXPECT_EQ(size(int32_t{1}, int32_t{32768}), 1 + 256u);
  EXPECT_EQ(size(int64_t{-128}, int64_t{5}), 1 + 64u);
  EXPECT_EQ(size(int64_t{-2147483648}, int64_t{5}), 1 + 256u);
  EXPECT_EQ(size(int64_t{-2147483649}, int64_t{5}), 1 + 512u);
}

TEST_P(BlockCodecTest, AFloat64ThatIsAFloat32NumberTakesFourBytes) {
  std::vector<double> elements(64, static_cast<double>(0.1f));
  EXPECT_EQ(Encode(DType::kFloat64, BytesOf(elements)).size(), 1 + 256u);
  ExpectSame(DType::kFloat64, BytesOf(elements));
  elements[7] = 0.1;
  EXPECT_EQ(Encode(DType::kFloat64, BytesOf(elements)).size(), 1 + 512u);
  ExpectSame(DType::kFloat64, BytesOf(elements));
}

// ---- every bit is kept ----

TEST_P(BlockCodecTest, SpecialValuesKeepTheirBits) {
  const uint32_t specials[] = {0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                               0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001,
                               0x7fc12345, 0xff812300, 0x7f810000, 0x7fa00000, 0x33800000,
                               0x38800000, 0x387fc000, 0x477fe000, 0x47800000, 0x00010000};
  const uint32_t others[] = {0, 0x3f800000, 0x3f810000, 0x3f802000, 0x3f800100, 0x3f800001};
  for (const uint32_t special : specials) {
    for (const uint32_t other : others) {
      for (size_t at : {size_t{0}, size_t{17}, size_t{63}}) {
        std::vector<uint32_t> block(64, other);
        for (size_t i = 1; i < 64; i += 2) block[i] = other + (other & 0xffff0000 ? 0x80000000 : 0);
        block[at] = special;
        ExpectSame(DType::kFloat32, BytesOf(block), " with " + std::to_string(special));
      }
    }
  }
}

TEST_P(BlockCodecTest, EveryFloat16NumberKeepsItsBits) {
  for (uint32_t half = 0; half < 0x10000; half += 61) {
    std::vector<float> block;
    for (uint32_t i = 0; i < 64; ++i) block.push_back(HalfToFloat(static_cast<uint16_t>(half + i)));
    ExpectSame(DType::kFloat32, BytesOf(block));
  }
}

TEST_P(BlockCodecTest, MixturesOfAllKindsAndLengthsKeepTheirBits) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto element = [&](int style, size_t bytes) -> uint64_t {
    const uint64_t bits = random();
    const auto f = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
    switch (style) {
      case 0:
        return 0;
      case 1:
        return bits;
      case 2:
        return std::bit_cast<uint32_t>(f) & 0xffff0000;
      case 3:
        return std::bit_cast<uint32_t>(f) & 0xffffff00;
      case 4:
        return std::bit_cast<uint32_t>(HalfToFloat(static_cast<uint16_t>(bits)));
      case 5:
        return std::bit_cast<uint32_t>(static_cast<float>(static_cast<int8_t>(bits)) * 0x1p-40f);
      case 6:
        return std::bit_cast<uint32_t>(0.3f) | (bits & 0x80000000);
      case 7:
        return bits % 16 == 0 ? bits : 0;
      case 8:
        return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(bits)));
      case 9:
        return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(bits)));
      case 10:
        return bytes == 8 ? std::bit_cast<uint64_t>(static_cast<double>(f)) : bits;
      default:
        return bits & 0x8000000080008000;
    }
  };
  for (int repeat = 0; repeat < 200; ++repeat) {
    for (const DType dtype : kAll) {
      const size_t elements = random() % 700;
      std::vector<std::byte> raw(elements * SizeOf(dtype));
      int style = 0;
      for (size_t i = 0; i < elements; ++i) {
        if (i % 64 == 0) style = static_cast<int>(random() % 12);
        const int one = random() % 50 == 0 ? static_cast<int>(random() % 12) : style;
        const uint64_t bits = element(one, SizeOf(dtype));
        std::memcpy(raw.data() + i * SizeOf(dtype), &bits, SizeOf(dtype));
      }
      ExpectSame(dtype, raw);
    }
  }
}

TEST_P(BlockCodecTest, AReaderMayStopAtAnyBlock) {
  std::mt19937 random(7);
  std::vector<float> elements;
  for (int i = 0; i < 1000; ++i) {
    elements.push_back(i / 64 % 3 == 0 ? 0.0f
                                       : static_cast<float>(random()) * (i / 64 % 2 ? 1.0f : 0.1f));
  }
  const auto encoded = Encode(DType::kFloat32, BytesOf(elements));
  for (const size_t step : {size_t{64}, size_t{128}, size_t{320}}) {
    BlockReader reader(DType::kFloat32, elements.size(), encoded);
    std::vector<float> decoded(elements.size());
    for (size_t at = 0; at < elements.size(); at += step) {
      reader.Read(std::min(step, elements.size() - at), decoded.data() + at);
    }
    EXPECT_TRUE(BytesOf(decoded) == BytesOf(elements)) << step;
  }
}

TEST_P(BlockCodecTest, UnalignedMemoryWillDo) {
  std::vector<float> elements(200, 1.5f);
  elements[70] = 0.1f;
  const auto raw = BytesOf(elements);
  std::vector<std::byte> shifted(raw.size() + 1);
  std::memcpy(shifted.data() + 1, raw.data(), raw.size());
  std::vector<std::byte> room(EncodedBytesMax(DType::kFloat32, 200) + 1);
  const size_t size =
      EncodeBlocks(DType::kFloat32, shifted.data() + 1, 200, 4000, MutableBytes(room).subspan(1));
  ASSERT_GT(size, 0u);
  std::vector<std::byte> decoded(raw.size() + 1);
  DecodeBlocks(DType::kFloat32, 200, Bytes(room).subspan(1, size), decoded.data() + 1);
  EXPECT_EQ(std::memcmp(decoded.data() + 1, raw.data(), raw.size()), 0);
}

// ---- limits ----

TEST_P(BlockCodecTest, AnEncodingAboveTheLimitIsGivenUp) {
  const auto raw = BytesOf(Floats(640, 1.0f / 3));
  std::vector<float> elements(640);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = 0.1f * static_cast<float>(i + 1);
  EXPECT_TRUE(Encode(DType::kFloat32, BytesOf(elements), 2560).empty());
  EXPECT_EQ(Encode(DType::kFloat32, BytesOf(elements), 2565).size(), 2565u);
  EXPECT_FALSE(Encode(DType::kFloat32, raw, 2560).empty());
}

TEST_P(BlockCodecTest, ALongPartitionWithoutGainIsGivenUpAfterAQuarter) {
  std::vector<float> elements(1 << 14);
  for (size_t i = 0; i < elements.size() / 2; ++i) elements[i] = 0.1f * static_cast<float>(i + 1);
  EXPECT_TRUE(Encode(DType::kFloat32, BytesOf(elements)).empty());
}

// ---- encodings of a hostile peer ----

TEST_P(BlockCodecTest, MalformedEncodingsAreRefused) {
  const auto good = Encode(DType::kFloat32, BytesOf(Floats(128, 0.1f)));
  ASSERT_TRUE(IsWellFormed(DType::kFloat32, 128, good));
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 192, good));
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 64, good));
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 128, Bytes(good).first(good.size() - 1)));
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 128, {}));
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 128, longer));
  // A kind that the type does not have, or that nothing has.
  const std::vector<std::byte> upper(1 + 64 * 2, std::byte{2});
  EXPECT_TRUE(IsWellFormed(DType::kFloat32, 64, upper));
  EXPECT_FALSE(IsWellFormed(DType::kInt32, 64, upper));
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 1, std::vector<std::byte>{std::byte{15}}));
  // A kind for a block that is not there.
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 64, std::vector<std::byte>{std::byte{0x10}}));
  // A bitmap with elements that are not there, and one with more elements than bytes.
  std::vector<std::byte> sparse(1 + 8 + 4);
  sparse[0] = std::byte{7};
  sparse[1] = std::byte{1};
  EXPECT_TRUE(IsWellFormed(DType::kFloat32, 3, sparse));
  sparse[1] = std::byte{8};
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 3, sparse));
  EXPECT_TRUE(IsWellFormed(DType::kFloat32, 4, sparse));
  sparse[1] = std::byte{3};
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 4, sparse));
  // A unit that would make infinities.
  std::vector<std::byte> scaled(2 + 64);
  scaled[0] = std::byte{5};
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 64, scaled));
  scaled[1] = std::byte{249};
  EXPECT_FALSE(IsWellFormed(DType::kFloat32, 64, scaled));
  scaled[1] = std::byte{248};
  EXPECT_TRUE(IsWellFormed(DType::kFloat32, 64, scaled));
}

TEST_P(BlockCodecTest, RandomBytesAreRefusedOrDecoded) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  int decoded = 0;
  for (int repeat = 0; repeat < 50'000; ++repeat) {
    const DType dtype = kAll[random() % 6];
    const uint64_t elements = random() % 200;
    std::vector<std::byte> payload(random() % 300);
    for (auto& byte : payload)
      byte = static_cast<std::byte>(random() % 4 ? random() : random() % 16);
    if (!IsWellFormed(dtype, elements, payload)) continue;
    std::vector<std::byte> room(elements * SizeOf(dtype));
    DecodeBlocks(dtype, elements, payload, room.data());
    ++decoded;
  }
  EXPECT_GT(decoded, 0);
}

}  // namespace
}  // namespace addend
