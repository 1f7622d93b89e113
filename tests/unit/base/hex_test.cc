#include "lib/base/hex.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace addend {
namespace {

TEST(BytesFromHexTest, ReadsWhatAbseilWrites) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(BytesFromHex(absl::BytesToHexString(all)), all);
  EXPECT_EQ(BytesFromHex("fE0a"), "\xfe\x0a");
  EXPECT_EQ(BytesFromHex(""), "");
}

TEST(BytesFromHexTest, RefusesOtherText) {
  for (const char* text : {"0", "0g", "g0", "+1", "-1", " 1", "1 ", "0x10", "00 0"}) {
    EXPECT_EQ(BytesFromHex(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace addend
