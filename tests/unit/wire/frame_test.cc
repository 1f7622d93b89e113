#include "lib/wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/failure.h"
#include "lib/wire/crc32c.h"

namespace addend {
namespace {

FrameHeader Sample() {
  FrameHeader header;
  header.type = FrameType::kResult;
  header.flags = kFlagEmpty;
  header.dtype = DType::kBFloat16;
  header.op = ReduceOp::kMax;
  header.job = JobId(0x1122334455667788);
  header.generation = Generation(3);
  header.sender = 17;
  header.incarnation = Incarnation(0xfedcba9876543210);
  header.plan_version = PlanVersion(99);
  header.partition = PartitionId(TensorId(5), 6);
  header.round = Round(1234567890123);
  header.priority = -4;
  header.contributors = 8;
  header.payload_bytes = 131072;
  header.uncompressed_bytes = 131072;
  header.payload_crc32c = 0xabcdef01;
  header.detail = 66;
  return header;
}

TEST(FrameTest, EveryFieldSurvivesTheRoundTrip) {
  EncodedHeader bytes;
  EncodeHeader(Sample(), &bytes);
  const auto decoded = DecodeHeader(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const FrameHeader expected = Sample();
  EXPECT_EQ(decoded->type, expected.type);
  EXPECT_EQ(decoded->flags, expected.flags);
  EXPECT_EQ(decoded->dtype, expected.dtype);
  EXPECT_EQ(decoded->op, expected.op);
  EXPECT_EQ(decoded->job, expected.job);
  EXPECT_EQ(decoded->generation, expected.generation);
  EXPECT_EQ(decoded->sender, expected.sender);
  EXPECT_EQ(decoded->incarnation, expected.incarnation);
  EXPECT_EQ(decoded->plan_version, expected.plan_version);
  EXPECT_EQ(decoded->partition, expected.partition);
  EXPECT_EQ(decoded->round, expected.round);
  EXPECT_EQ(decoded->priority, expected.priority);
  EXPECT_EQ(decoded->contributors, expected.contributors);
  EXPECT_EQ(decoded->payload_bytes, expected.payload_bytes);
  EXPECT_EQ(decoded->uncompressed_bytes, expected.uncompressed_bytes);
  EXPECT_EQ(decoded->payload_crc32c, expected.payload_crc32c);
  EXPECT_EQ(decoded->detail, expected.detail);
}

TEST(FrameTest, TheFirstBytesOnTheWireAreTheMagicAndTheVersion) {
  EncodedHeader bytes;
  EncodeHeader(Sample(), &bytes);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "ADND");
  EXPECT_EQ(bytes[4], std::byte{7});
  EXPECT_EQ(bytes[5], std::byte{0});
  EXPECT_EQ(bytes[6], std::byte{3}) << "the type stands at offset 6";
}

// Other versions speak them, and messages and documents name them.
TEST(FrameTest, TypesHaveTheNumbersAndNamesOfTheProtocol) {
  struct Row {
    FrameType type;
    int number;
    std::string_view name;
  };
  for (const auto& [type, number, name] :
       {Row{FrameType::kHello, 1, "HELLO"}, Row{FrameType::kContribution, 2, "CONTRIBUTION"},
        Row{FrameType::kResult, 3, "RESULT"}, Row{FrameType::kAck, 4, "ACK"},
        Row{FrameType::kMoved, 5, "MOVED"}, Row{FrameType::kSendAgain, 6, "SEND_AGAIN"},
        Row{FrameType::kRecover, 7, "RECOVER"}, Row{FrameType::kAborted, 8, "ABORTED"},
        Row{FrameType::kGoaway, 9, "GOAWAY"}, Row{FrameType::kPing, 10, "PING"},
        Row{FrameType::kBundle, 11, "BUNDLE"}, Row{FrameType::kStamp, 12, "STAMP"},
        Row{FrameType::kAudit, 13, "AUDIT"}, Row{FrameType::kAuditDigest, 14, "AUDIT_DIGEST"},
        Row{FrameType::kChallenge, 15, "CHALLENGE"}, Row{FrameType::kProof, 16, "PROOF"},
        Row{FrameType::kPartialSum, 17, "PARTIAL_SUM"}}) {
    EXPECT_EQ(static_cast<int>(type), number) << name;
    EXPECT_EQ(Name(type), name);
  }
}

TEST(FrameTest, OnlySmallFramesOfPartitionsAreBundled) {
  const std::set<FrameType> alone = {
      FrameType::kHello,       FrameType::kGoaway,    FrameType::kBundle, FrameType::kAudit,
      FrameType::kAuditDigest, FrameType::kChallenge, FrameType::kProof};
  for (int number = 1; number <= 17; ++number) {
    const auto type = static_cast<FrameType>(number);
    EXPECT_EQ(MayBeBundled(type, 0), !alone.contains(type)) << Name(type);
    EXPECT_EQ(MayBeBundled(type, kMaxBundledBytes), !alone.contains(type)) << Name(type);
    EXPECT_FALSE(MayBeBundled(type, kMaxBundledBytes + 1)) << Name(type);
  }
}

TEST(FrameTest, APayloadOfTheLimitIsAccepted) {
  FrameHeader header = Sample();
  EncodedHeader bytes;
  header.payload_bytes = kMaxPayloadBytes;
  EncodeHeader(header, &bytes);
  EXPECT_TRUE(DecodeHeader(bytes).ok());
  header.payload_bytes = kMaxPayloadBytes + 1;
  EncodeHeader(header, &bytes);
  EXPECT_EQ(DecodeHeader(bytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameTest, EveryFlippedBitIsNoticed) {
  EncodedHeader good;
  EncodeHeader(Sample(), &good);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    EncodedHeader bytes = good;
    bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_FALSE(DecodeHeader(bytes).ok()) << "bit " << bit;
  }
}

TEST(FrameTest, AnotherVersionIsNamedBeforeAnythingElse) {
  EncodedHeader bytes;
  EncodeHeader(Sample(), &bytes);
  bytes[4] = std::byte{9};
  const auto decoded = DecodeHeader(bytes);
  EXPECT_EQ(KindOf(decoded.status()), FailureKind::kVersion);
  EXPECT_NE(std::string(decoded.status().message()).find("version 9"), std::string::npos);
}

TEST(FrameTest, SumsOfSpansCameWithVersionSeven) {
  FrameHeader header = Sample();
  header.type = FrameType::kPartialSum;
  header.detail = DetailOf({.first = 65472, .count = 64});
  EncodedHeader bytes;
  EncodeHeader(header, &bytes);
  ASSERT_TRUE(DecodeHeader(bytes).ok());
  EXPECT_EQ(SpanIn(*DecodeHeader(bytes)), (SumSpan{.first = 65472, .count = 64}));
  header.version = kPartialSumsSince - 1;
  EncodeHeader(header, &bytes);
  EXPECT_EQ(DecodeHeader(bytes).status().code(), absl::StatusCode::kInvalidArgument);
}

// Errors that a valid checksum does not exclude: the peer computes it over invalid fields.
TEST(FrameTest, UnknownValuesAreRefusedWithAValidChecksum) {
  const auto refuse = [](size_t offset, uint8_t value) {
    EncodedHeader bytes;
    EncodeHeader(Sample(), &bytes);
    bytes[offset] = std::byte{value};
    const uint32_t crc = Crc32c(Bytes(bytes.data(), 92));
    std::memcpy(bytes.data() + 92, &crc, 4);
    return DecodeHeader(bytes).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuse(6, 0)) << "type";
  EXPECT_TRUE(refuse(6, 18)) << "type";
  EXPECT_TRUE(refuse(7, 6)) << "dtype";
  EXPECT_TRUE(refuse(8, 6)) << "op";
  EXPECT_TRUE(refuse(9, 2)) << "encoding";
  EXPECT_TRUE(refuse(11, 0x80)) << "flags";
  EXPECT_TRUE(refuse(71, 0x7f)) << "payload length";
  EXPECT_TRUE(refuse(84, 1)) << "reserved bytes";
}

// A contribution of 1000 bytes, encoded in 500.
FrameHeader EncodedContribution() {
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.encoding = Encoding::kBlocks;
  header.payload_bytes = 500;
  header.uncompressed_bytes = 1000;
  return header;
}

absl::StatusOr<FrameHeader> Again(const FrameHeader& header) {
  EncodedHeader bytes;
  EncodeHeader(header, &bytes);
  return DecodeHeader(bytes);
}

TEST(FrameTest, PayloadsOfContributionsResultsAndAuditsMayBeEncoded) {
  for (const FrameType type : {FrameType::kContribution, FrameType::kResult, FrameType::kAudit}) {
    FrameHeader header = EncodedContribution();
    header.type = type;
    const auto decoded = Again(header);
    ASSERT_TRUE(decoded.ok()) << Name(type);
    EXPECT_EQ(decoded->encoding, Encoding::kBlocks);
    EXPECT_EQ(RawBytesOf(*decoded), 1000u);
  }
  FrameHeader header = EncodedContribution();
  header.type = FrameType::kStamp;
  EXPECT_EQ(Again(header).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameTest, AnEncodingIsShorterThanItsElementsAndHasALimit) {
  FrameHeader header = EncodedContribution();
  header.payload_bytes = 1000;
  EXPECT_FALSE(Again(header).ok());
  header.payload_bytes = 999;
  EXPECT_TRUE(Again(header).ok());
  header.uncompressed_bytes = kMaxPayloadBytes;
  EXPECT_TRUE(Again(header).ok());
  header.uncompressed_bytes = kMaxPayloadBytes + 1;
  EXPECT_FALSE(Again(header).ok());
}

TEST(FrameTest, EncodingsCameWithVersion6) {
  FrameHeader header = EncodedContribution();
  header.version = 5;
  EXPECT_EQ(Again(header).status().code(), absl::StatusCode::kInvalidArgument);
  header.encoding = Encoding::kRaw;
  EXPECT_TRUE(Again(header).ok());
}

TEST(FrameTest, RandomBytesNeverDecode) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 10000; ++i) {
    EncodedHeader bytes;
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(DecodeHeader(bytes).ok());
  }
}

// RFC 3720, B.4.
TEST(Crc32cTest, KnownAnswers) {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones), 0x62a8ab43u);
}

}  // namespace
}  // namespace addend
