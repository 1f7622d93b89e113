#include "lib/wire/stamp.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(StampTest, SurvivesTheRoundTrip) {
  const Stamp stamp{.updates = 0x0102030405060708, .applied = {1, 0, 0xFFFFFFFFFFFFFFFF}};
  const std::vector<std::byte> bytes = EncodeStamp(stamp);
  EXPECT_EQ(bytes.size(), StampBytes(3));
  EXPECT_EQ(bytes[0], std::byte{8}) << "little-endian";
  const auto decoded = DecodeStamp(bytes, 3);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->updates, stamp.updates);
  EXPECT_EQ(decoded->applied, stamp.applied);
}

TEST(StampTest, AStampOfAnotherNumberOfNodesIsRefused) {
  const std::vector<std::byte> bytes = EncodeStamp({.updates = 1, .applied = {1, 2}});
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeStamp(bytes, 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeStamp({}, 0).status()));
  EXPECT_TRUE(DecodeStamp(bytes, 2).ok());
}

}  // namespace
}  // namespace addend
