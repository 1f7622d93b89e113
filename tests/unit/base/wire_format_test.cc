#include "lib/base/wire_format.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(WireFormatTest, TheNumericsOfADescriptorNameTheTreeAndALossyType) {
  EXPECT_EQ(ToString(NumericsIn(8, {})), "flat");
  EXPECT_EQ(ToString(NumericsIn(9, {})), "tree8");
  EXPECT_EQ(ToString(NumericsIn(8, {WireDType::kInt8, true})), "flat int8 stochastic");
  for (const WireFormat format : {WireFormat{}, WireFormat{WireDType::kBFloat16, false},
                                  WireFormat{WireDType::kFloat16, true}}) {
    for (const uint32_t nodes : {1, 8, 9, 65536}) {
      const Numerics numerics = NumericsIn(nodes, format);
      EXPECT_EQ(NumericsOf(ToString(numerics)), numerics);
    }
  }
  EXPECT_EQ(NumericsOf(""), Numerics()) << "of an older agent";
}

TEST(WireFormatTest, UnknownNumericsAreUnknown) {
  for (const char* text : {"ring", "flat ", "flat same", "flat int4", "flatint8", "flat int8 ", " ",
                           "tree", "tree8 same", "tree88", " int8"}) {
    EXPECT_EQ(NumericsOf(text), std::nullopt) << text;
  }
}

TEST(WireFormatTest, OnlySumsAndAveragesOfFloat32MayBeLossy) {
  EXPECT_TRUE(MayBeLossy(DType::kFloat32, ReduceOp::kSum));
  EXPECT_TRUE(MayBeLossy(DType::kFloat32, ReduceOp::kAverage));
  EXPECT_FALSE(MayBeLossy(DType::kFloat32, ReduceOp::kAccumulate));
  EXPECT_FALSE(MayBeLossy(DType::kFloat32, ReduceOp::kBroadcast));
  EXPECT_FALSE(MayBeLossy(DType::kFloat16, ReduceOp::kSum));
}

}  // namespace
}  // namespace addend
