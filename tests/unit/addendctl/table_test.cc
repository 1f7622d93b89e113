#include "tools/addendctl/table.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(TableTest, AlignsNumbersRightAndTextLeft) {
  Table table({"NAME", "COUNT"});
  table.Add({"größer", "5"});
  table.Add({"b", "1234567"});
  EXPECT_EQ(table.ToString(),
            "NAME      COUNT\n"
            "größer        5\n"
            "b       1234567\n");
}

TEST(TableTest, KnowsThatItIsEmpty) {
  Table table({"A"});
  EXPECT_TRUE(table.empty());
  table.Add({"x"});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.ToString(2), "  A\n  x\n");
}

TEST(TableTest, WritesNumbersWithFewDigits) {
  EXPECT_EQ(FormatPercent(0.1234), "12.3 %");
  EXPECT_EQ(FormatSeconds(0.00083), "830 us");
  EXPECT_EQ(FormatSeconds(0.0125), "12.5 ms");
  EXPECT_EQ(FormatSeconds(3.2), "3.2 s");
  EXPECT_EQ(FormatSeconds(300), "5 min");
  EXPECT_EQ(FormatSeconds(9000), "2.5 h");
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(999.9), "1 KB");
  EXPECT_EQ(FormatSize(1.25e9), "1.25 GB");
}

}  // namespace
}  // namespace addend
