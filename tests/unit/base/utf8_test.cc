#include "lib/base/utf8.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(OneLineTest, LeavesTextAsItIs) {
  EXPECT_EQ(OneLine("node 3 of bert: \\ 'ok' \"a\""), "node 3 of bert: \\ 'ok' \"a\"");
  EXPECT_EQ(OneLine("Größe 数 🙂"), "Größe 数 🙂");
  EXPECT_EQ(OneLine(""), "");
}

TEST(OneLineTest, EscapesLineEndsAndCursorMovements) {
  EXPECT_EQ(OneLine("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(OneLine(std::string_view("\x1b[2J\0\x7f", 6)), "\\x1b[2J\\x00\\x7f");
  EXPECT_EQ(OneLine("\u0085\u009b"), "\\x85\\x9b");
  EXPECT_EQ(OneLine("a\u2028b\u202ec\u2066"), "a\\u2028b\\u202ec\\u2066");
}

TEST(OneLineTest, EscapesInvalidUtf8) {
  EXPECT_EQ(OneLine("a\xff"
                    "b\xc3"),
            "a\\xffb\\xc3");
  EXPECT_EQ(OneLine("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

TEST(IsUtf8Test, TellsTextFromBytes) {
  EXPECT_TRUE(IsUtf8("Größe 🙂"));
  EXPECT_FALSE(IsUtf8("\xc0\x80"));
  EXPECT_FALSE(IsUtf8("\xf5\x80\x80\x80"));
  EXPECT_FALSE(IsUtf8("a\xc3"));
}

TEST(ShortenedTest, CutsBetweenTwoCharacters) {
  EXPECT_EQ(Shortened("gradient", 8), "gradient");
  EXPECT_EQ(Shortened("gradients", 8), "gradi...");
  EXPECT_EQ(Shortened("größe 数数", 11), "größe ...") << "no half of a character";
  EXPECT_EQ(Shortened("gradients", 3), "...");
}

}  // namespace
}  // namespace addend
