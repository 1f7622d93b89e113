#include "lib/wire/link_version.h"

#include <gtest/gtest.h>

#include "lib/base/failure.h"

namespace addend {
namespace {

FrameHeader Of(uint16_t version) {
  FrameHeader header;
  header.version = version;
  return header;
}

TEST(LinkVersionTest, TheFirstFrameDecidesTheVersionOfAllSentFrames) {
  LinkVersion link;
  ASSERT_TRUE(link.Check(Of(4)).ok());
  FrameHeader answer = Of(6);
  link.Sign(&answer);
  EXPECT_EQ(answer.version, 4);
}

TEST(LinkVersionTest, AFrameOfAnotherVersionThanTheHelloIsRefused) {
  LinkVersion link;
  FrameHeader hello = Of(5);
  link.Sign(&hello);
  EXPECT_TRUE(link.Check(Of(5)).ok());
  EXPECT_EQ(KindOf(link.Check(Of(6))), FailureKind::kVersion);
}

TEST(LinkVersionTest, EveryVersionOfTheRangeIsDecodedAndNoOther) {
  EncodedHeader bytes;
  EncodeHeader(Of(6), &bytes);
  EXPECT_EQ(DecodeHeader(bytes, {5, 6})->version, 6);
  EXPECT_EQ(DecodeHeader(bytes, {6, 9})->version, 6);
  const absl::Status refused = DecodeHeader(bytes, {4, 5}).status();
  EXPECT_EQ(KindOf(refused), FailureKind::kVersion);
  EXPECT_NE(refused.message().find("versions 4 to 5"), refused.message().npos);
}

TEST(VersionRangeTest, RangesHaveTheirOverlapInCommonOrNothing) {
  EXPECT_EQ(Common({1, 3}, {2, 5}), (VersionRange{2, 3}));
  EXPECT_EQ(Common({4, 4}, {4, 4}), (VersionRange{4, 4}));
  EXPECT_EQ(Common({1, 2}, {3, 4}), std::nullopt);
}

}  // namespace
}  // namespace addend
