#include "lib/encoding/payload_encoder.h"

#include <gtest/gtest.h>

#include <vector>

namespace addend {
namespace {

constexpr size_t kElements = 4096;

class PayloadEncoderTest : public testing::Test {
 protected:
  PayloadEncoderTest() {
    for (size_t i = 0; i < kElements; ++i) {
      bfloats_.push_back(static_cast<float>(i % 200 + 1) * 0x1p-7f);
      others_.push_back(static_cast<float>(i + 1) * 0.1f);
    }
  }
  EncodedPayload Encode(PayloadEncoder* encoder, const std::vector<float>& elements) {
    return encoder->Encode(DType::kFloat32, std::as_bytes(std::span<const float>(elements)),
                           &history_, {});
  }
  bool Gains(PayloadEncoder* encoder, const std::vector<float>& elements) {
    return !Encode(encoder, elements).content.raw();
  }

  std::vector<float> bfloats_, others_;
  PayloadEncoder::History history_;
};

TEST_F(PayloadEncoderTest, OptionsHaveNames) {
  EXPECT_EQ(WireEncodingOf("auto"), WireEncoding::kAuto);
  EXPECT_EQ(WireEncodingOf("raw"), WireEncoding::kRaw);
  EXPECT_EQ(WireEncodingOf("always"), WireEncoding::kAlways);
  EXPECT_EQ(WireEncodingOf("zip"), std::nullopt);
}

TEST_F(PayloadEncoderTest, EncodesWhatGains) {
  PayloadEncoder encoder(WireEncoding::kAuto);
  const EncodedPayload encoded = Encode(&encoder, bfloats_);
  ASSERT_EQ(encoded.content.encoding, Encoding::kBlocks);
  EXPECT_LT(encoded.content.bytes.size(), kElements * 2 + 100);
  std::vector<float> decoded(kElements);
  Decode(encoded.content, DType::kFloat32, kElements, decoded.data());
  EXPECT_EQ(decoded, bfloats_);
}

TEST_F(PayloadEncoderTest, RawMeansRaw) {
  PayloadEncoder encoder(WireEncoding::kRaw);
  EXPECT_FALSE(Gains(&encoder, bfloats_));
}

TEST_F(PayloadEncoderTest, SmallPayloadsStayAsTheyAre) {
  PayloadEncoder encoder(WireEncoding::kAlways);
  EXPECT_FALSE(Gains(&encoder, std::vector<float>(PayloadEncoder::kLeastBytes / 4 - 1)));
  EXPECT_TRUE(Gains(&encoder, std::vector<float>(PayloadEncoder::kLeastBytes / 4)));
}

TEST_F(PayloadEncoderTest, APartitionWithoutGainIsTriedEverMoreSeldom) {
  PayloadEncoder encoder(WireEncoding::kAlways);
  std::vector<int> attempts;
  for (int round = 1; round <= 300; ++round) {
    const bool tries = history_.skip == 0;
    if (tries) attempts.push_back(round);
    EXPECT_FALSE(Gains(&encoder, others_));
  }
  EXPECT_EQ(attempts, (std::vector<int>{1, 3, 7, 15, 31, 63, 127, 191, 255}));
  while (history_.skip > 0) EXPECT_FALSE(Gains(&encoder, bfloats_));
  for (int round = 0; round < 10; ++round) EXPECT_TRUE(Gains(&encoder, bfloats_));
}

TEST_F(PayloadEncoderTest, TriesNowAndThenWhereItIsOff) {
  PayloadEncoder encoder(WireEncoding::kAuto);
  EXPECT_TRUE(Gains(&encoder, bfloats_));
  for (int i = 0; i < 1000; ++i) encoder.costs()->NoteEncoding(/*ns_per_byte=*/100, /*saved=*/0.5);
  encoder.costs()->NoteTraffic({.bytes_sent = 100 << 20}, absl::Seconds(0.1));
  ASSERT_FALSE(encoder.costs()->IsWorthIt());
  int encoded = 0;
  for (int i = 0; i < 256; ++i) encoded += Gains(&encoder, bfloats_) ? 1 : 0;
  EXPECT_EQ(encoded, 1);
}

TEST_F(PayloadEncoderTest, EncodingsAreKeptWhileTheyAreHeld) {
  PayloadEncoder encoder(WireEncoding::kAlways);
  EncodedPayload first = Encode(&encoder, bfloats_);
  const EncodedPayload second = Encode(&encoder, bfloats_);
  EXPECT_NE(first.content.bytes.data(), second.content.bytes.data());
  const std::byte* const memory = first.content.bytes.data();
  first = {};
  EXPECT_EQ(Encode(&encoder, bfloats_).content.bytes.data(), memory);
}

TEST_F(PayloadEncoderTest, AnEncodingMayOutliveItsEncoder) {
  EncodedPayload encoded;
  {
    PayloadEncoder encoder(WireEncoding::kAlways);
    encoded = Encode(&encoder, bfloats_);
  }
  std::vector<float> decoded(kElements);
  Decode(encoded.content, DType::kFloat32, kElements, decoded.data());
  EXPECT_EQ(decoded, bfloats_);
}

}  // namespace
}  // namespace addend
