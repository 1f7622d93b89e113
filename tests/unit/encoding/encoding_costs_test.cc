#include "lib/encoding/encoding_costs.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

constexpr uint64_t kBytes = 100 << 20;  // in each direction, in each interval

absl::Duration For(double ns_per_byte) { return absl::Nanoseconds(ns_per_byte * kBytes); }

class EncodingCostsTest : public testing::Test {
 protected:
  EncodingCostsTest() { costs_.NoteEncoding(/*ns_per_byte=*/0.1, /*saved=*/0.5); }
  // Costs are running means: long after they have changed.
  void Settle(absl::Duration busy, absl::Duration sending, absl::Duration receiving) {
    for (int i = 0; i < 50; ++i) {
      total_.bytes_sent += kBytes;
      total_.bytes_received += kBytes;
      total_.sending += sending;
      total_.receiving += receiving;
      costs_.NoteTraffic(total_, busy);
    }
  }

  EncodingCosts costs_;
  Traffic total_;
};

TEST_F(EncodingCostsTest, EncodingIsWorthATryBeforeAllIsMeasured) {
  EXPECT_TRUE(costs_.IsWorthIt());
  EncodingCosts unknown;
  unknown.NoteTraffic({.bytes_sent = kBytes}, For(0.001));
  EXPECT_TRUE(unknown.IsWorthIt());
}

TEST_F(EncodingCostsTest, AFastNetworkIsCheaperThanEncoding) {
  Settle(For(0.8), For(0.02), For(0.02));  // 10 Gbit/s
  EXPECT_TRUE(costs_.IsWorthIt());
  Settle(For(0.08), For(0.02), For(0.02));  // 100 Gbit/s
  EXPECT_FALSE(costs_.IsWorthIt());
  Settle(For(20), For(0.02), For(0.02));  // 400 Mbit/s
  EXPECT_TRUE(costs_.IsWorthIt());
}

TEST_F(EncodingCostsTest, TheProcessorsOfBothEndsPassOnEveryByte) {
  Settle(For(0.01), For(0.1), For(0.1));
  EXPECT_FALSE(costs_.IsWorthIt());
  Settle(For(0.01), For(0.1), For(0.25));
  EXPECT_TRUE(costs_.IsWorthIt());
  Settle(For(0.01), For(0.25), For(0.1));
  EXPECT_TRUE(costs_.IsWorthIt());
}

TEST_F(EncodingCostsTest, AnEncodingThatIsSentToManyNodesCostsOnce) {
  Settle(For(0.2), For(0.02), For(0.02));
  EXPECT_FALSE(costs_.IsWorthIt());
  for (int i = 0; i < 100; ++i) costs_.NoteEncoding(/*ns_per_byte=*/0.1, /*saved=*/0.5, 4);
  EXPECT_TRUE(costs_.IsWorthIt());
}

TEST_F(EncodingCostsTest, ASmallGainIsNotWorthIt) {
  Settle(For(0.4), For(0.02), For(0.02));
  EXPECT_TRUE(costs_.IsWorthIt());
  for (int i = 0; i < 1000; ++i) costs_.NoteEncoding(/*ns_per_byte=*/0.1, /*saved=*/0.25);
  EXPECT_FALSE(costs_.IsWorthIt());
}

TEST_F(EncodingCostsTest, AnEncodingThatWasInterruptedIsNoMeasureOfTheOthers) {
  Settle(For(0.8), For(0.02), For(0.02));
  for (int i = 0; i < 1000; ++i) {
    costs_.NoteEncoding(/*ns_per_byte=*/i % 20 == 0 ? 30 : 0.1, /*saved=*/0.5);
    EXPECT_TRUE(costs_.IsWorthIt());
  }
  for (int i = 0; i < 1000; ++i) costs_.NoteEncoding(/*ns_per_byte=*/0.5, /*saved=*/0.5);
  EXPECT_FALSE(costs_.IsWorthIt()) << "all of them take longer now";
}

TEST_F(EncodingCostsTest, FewBytesAreNoMeasurement) {
  costs_.NoteTraffic({.bytes_sent = 1000}, absl::Nanoseconds(1));
  EXPECT_TRUE(costs_.IsWorthIt());
}

}  // namespace
}  // namespace addend
