#include "lib/base/wire_format.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(WireFormatTest, TheNumericsOfADescriptorNameTheTreeAndALossyType) {
  EXPECT_EQ(NumericsOf({}), "flat");
  EXPECT_EQ(NumericsOf({WireDType::kInt8, true}), "flat int8 stochastic");
  for (const WireFormat format : {WireFormat{}, WireFormat{WireDType::kBFloat16, false},
                                  WireFormat{WireDType::kFloat16, true}}) {
    EXPECT_EQ(WireFormatOfNumerics(NumericsOf(format)), format);
  }
  EXPECT_EQ(WireFormatOfNumerics(""), WireFormat()) << "of an older agent";
}

TEST(WireFormatTest, UnknownNumericsAreUnknown) {
  for (const char* text : {"ring", "flat ", "flat same", "flat int4", "flatint8", "flat int8 "}) {
    EXPECT_EQ(WireFormatOfNumerics(text), std::nullopt) << text;
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
