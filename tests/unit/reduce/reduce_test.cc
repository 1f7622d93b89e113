#include "lib/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "hwy/targets.h"
#include "tests/unit/reduce/reference.h"

namespace addend {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr DType kAllDTypes[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                                DType::kBFloat16, DType::kInt32,   DType::kInt64};
constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax};
constexpr size_t kSizes[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 255, 1023, 4099};

uint32_t Seed() {
  static const uint32_t seed = [] {
    const uint32_t s = std::random_device{}();
    std::printf("seed %u\n", s);
    return s;
  }();
  return seed;
}

// Every special value of the type, as bits.
std::vector<uint64_t> SpecialValues(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000,
              0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
              0x7f800001, 0xff812345, 0x7fffffff, 0x3f800000, 0xbf800000};
    case DType::kFloat64:
      return {0,
              1,
              0x8000000000000000,
              0x8000000000000001,
              0x000fffffffffffff,
              0x7fefffffffffffff,
              0x7ff0000000000000,
              0xfff0000000000000,
              0x7ff8000000000000,
              0xfff8000000000000,
              0x7ff0000000000001,
              0xfff0000012345678,
              0x3ff0000000000000,
              0xbff0000000000000};
    case DType::kFloat16:
      return {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x7bff, 0xfbff,
              0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 0xfd23, 0x3c00, 0xbc00};
    case DType::kBFloat16:
      return {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x7f7f, 0xff7f,
              0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffab, 0x3f80, 0xbf80};
    default:
      return {0, 1, ~uint64_t{0}, 0x80000000, 0x7fffffff, 0x8000000000000000, 0x7fffffffffffffff};
  }
}

// Bits of any kind: numbers of alike size, arbitrary bits, special values.
Bytes RandomInput(DType dtype, size_t elements, std::mt19937_64& random) {
  const std::vector<uint64_t> special = SpecialValues(dtype);
  const size_t size = SizeOf(dtype);
  Bytes bytes(elements * size);
  for (size_t i = 0; i < elements; ++i) {
    uint64_t bits = random();
    if (bits % 8 == 0) {
      bits = special[random() % special.size()];
    } else if (bits % 8 < 6) {  // a number between -1 and 1, its exponent near 0
      const double value = std::ldexp(static_cast<double>(static_cast<int64_t>(random())), -63);
      if (dtype == DType::kFloat32) bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      if (dtype == DType::kFloat64) bits = std::bit_cast<uint64_t>(value);
      if (dtype == DType::kFloat16) bits = reference::Encode(value, 5, 10);
      if (dtype == DType::kBFloat16) bits = reference::Encode(value, 8, 7);
    }
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

// Memory at a chosen distance from alignment, with guards that show a write outside.
class Misaligned {
 public:
  Misaligned(size_t bytes, size_t offset)
      : memory_(kGuard + offset + bytes + kGuard, 0xa5), begin_(kGuard + offset), size_(bytes) {}
  Misaligned(const Bytes& bytes, size_t offset) : Misaligned(bytes.size(), offset) {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  uint8_t* data() { return memory_.data() + begin_; }
  Bytes Read(size_t bytes) { return Bytes(data(), data() + bytes); }
  void ExpectGuardsIntact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (i == begin_) i += size_;
      ASSERT_EQ(memory_[i], 0xa5) << "byte " << i << " outside was written";
    }
  }

 private:
  static constexpr size_t kGuard = 256;
  Bytes memory_;
  size_t begin_;
  size_t size_;
};

// Runs every test of this file with every vector target that this machine has.
class ReduceTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  std::mt19937_64 random_{Seed()};
};

INSTANTIATE_TEST_SUITE_P(Targets, ReduceTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

struct Case {
  DType dtype;
  ReduceOp op;
  size_t elements;
  std::vector<Bytes> inputs;
  uint32_t divisor;
  std::string name;
  Bytes expected;

  size_t bytes() const { return elements * SizeOf(dtype); }
};

Case MakeCase(DType dtype, ReduceOp op, size_t elements, size_t inputs, std::mt19937_64& random) {
  Case c{dtype, op, elements, {}, static_cast<uint32_t>(1 + random() % 9), "", {}};
  for (size_t j = 0; j < inputs; ++j) c.inputs.push_back(RandomInput(dtype, elements, random));
  c.expected = reference::Reduce(dtype, op, c.inputs, elements, c.divisor);
  c.name = absl::StrFormat("%s %s, %d elements, %d inputs, divisor %d, %s", Name(dtype), Name(op),
                           elements, inputs, c.divisor, TargetName());
  return c;
}

template <typename F>
void ForEachCase(std::mt19937_64& random, F f) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      for (const size_t elements : kSizes) {
        for (const size_t inputs : {1, 2, 5}) {
          const Case c = MakeCase(dtype, op, elements, inputs, random);
          SCOPED_TRACE(c.name);
          f(c);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ReduceTest, DispatchesToTheTargetUnderTest) {
  EXPECT_EQ(TargetName(), hwy::TargetName(GetParam()));
}

TEST_P(ReduceTest, StepByStepEqualsTheReference) {
  ForEachCase(random_, [&](const Case& c) {
    Misaligned acc(c.elements * AccumulatorSizeOf(c.dtype), random_() % 64);
    Misaligned out(c.bytes(), random_() % 64);
    for (size_t j = 0; j < c.inputs.size(); ++j) {
      Misaligned in(c.inputs[j], random_() % 64);
      const void* const one = in.data();
      if (j == 0) {
        Start(c.dtype, c.op, acc.data(), {&one, 1}, c.elements);
      } else {
        Accumulate(c.dtype, c.op, acc.data(), {&one, 1}, c.elements);
      }
    }
    Finish(c.dtype, c.op, out.data(), acc.data(), c.elements, c.divisor);
    ASSERT_EQ(out.Read(c.bytes()), c.expected);
    // In place, the narrower result at the front of the accumulators.
    Finish(c.dtype, c.op, acc.data(), acc.data(), c.elements, c.divisor);
    ASSERT_EQ(acc.Read(c.bytes()), c.expected);
    out.ExpectGuardsIntact();
    acc.ExpectGuardsIntact();
  });
}

TEST_P(ReduceTest, FusedFinishEqualsTheReference) {
  ForEachCase(random_, [&](const Case& c) {
    if (c.inputs.size() < 2) return;
    Misaligned acc(c.elements * AccumulatorSizeOf(c.dtype), random_() % 64);
    Misaligned last(c.inputs.back(), random_() % 64);
    Misaligned out(c.bytes(), random_() % 64);
    // Some at the start, some later, the rest at the end.
    const size_t first = 1 + random_() % (c.inputs.size() - 1);
    const size_t later = first + random_() % (c.inputs.size() - first);
    std::vector<const void*> pointers;
    for (const Bytes& input : c.inputs) pointers.push_back(input.data());
    pointers.back() = last.data();
    const std::span<const void* const> all(pointers);
    const auto rest = all.subspan(later);
    Start(c.dtype, c.op, acc.data(), all.first(first), c.elements);
    Accumulate(c.dtype, c.op, acc.data(), all.subspan(first, later - first), c.elements);
    const Bytes before = acc.Read(c.elements * AccumulatorSizeOf(c.dtype));
    AccumulateAndFinish(c.dtype, c.op, out.data(), acc.data(), rest, c.elements, c.divisor);
    ASSERT_EQ(out.Read(c.bytes()), c.expected);
    ASSERT_EQ(acc.Read(before.size()), before);
    AccumulateAndFinish(c.dtype, c.op, acc.data(), acc.data(), rest, c.elements, c.divisor);
    ASSERT_EQ(acc.Read(c.bytes()), c.expected) << "out == acc";
    Misaligned again(before, random_() % 64);
    AccumulateAndFinish(c.dtype, c.op, last.data(), again.data(), rest, c.elements, c.divisor);
    ASSERT_EQ(last.Read(c.bytes()), c.expected) << "out == in";
    out.ExpectGuardsIntact();
    acc.ExpectGuardsIntact();
    last.ExpectGuardsIntact();
  });
}

TEST_P(ReduceTest, OnePassEqualsTheReference) {
  ForEachCase(random_, [&](const Case& c) {
    Misaligned out(c.bytes(), random_() % 64);
    std::vector<Misaligned> inputs;
    std::vector<const void*> pointers;
    for (const Bytes& input : c.inputs) inputs.emplace_back(input, random_() % 64);
    for (Misaligned& input : inputs) pointers.push_back(input.data());
    Reduce(c.dtype, c.op, out.data(), pointers, c.elements, c.divisor);
    ASSERT_EQ(out.Read(c.bytes()), c.expected);
    out.ExpectGuardsIntact();
    Misaligned& shared = inputs[random_() % inputs.size()];
    Reduce(c.dtype, c.op, shared.data(), pointers, c.elements, c.divisor);
    ASSERT_EQ(shared.Read(c.bytes()), c.expected) << "out is an input";
    shared.ExpectGuardsIntact();
  });
}

// Results of many megabytes are stored past the caches.
TEST_P(ReduceTest, LargeResultsHaveTheSameBits) {
  constexpr size_t kBytes = (9 << 20) + 8 * 13, kPiece = 1 << 20;
  for (const DType dtype : kAllDTypes) {
    const size_t size = SizeOf(dtype);
    std::vector<Bytes> inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(RandomInput(dtype, kBytes / size, random_));
    const auto from = [&](size_t offset) {
      std::vector<const void*> pointers;
      for (const Bytes& input : inputs) pointers.push_back(input.data() + offset);
      return pointers;
    };
    Bytes expected(kBytes);
    for (size_t i = 0; i < kBytes; i += kPiece) {
      Reduce(dtype, ReduceOp::kAverage, expected.data() + i, from(i),
             std::min(kPiece, kBytes - i) / size, 3);
    }
    for (const size_t offset : {size_t{0}, size, size_t{1}, 64 - size}) {
      SCOPED_TRACE(absl::StrFormat("%s, offset %d", Name(dtype), offset));
      Misaligned out(kBytes, offset);
      Reduce(dtype, ReduceOp::kAverage, out.data(), from(0), kBytes / size, 3);
      ASSERT_TRUE(out.Read(kBytes) == expected);
      out.ExpectGuardsIntact();
    }
    Reduce(dtype, ReduceOp::kAverage, inputs[1].data(), from(0), kBytes / size, 3);
    ASSERT_TRUE(inputs[1] == expected) << "out is an input";
  }
}

TEST_P(ReduceTest, InNodeSumsWithoutDividing) {
  ForEachCase(random_, [&](const Case& c) {
    const ReduceOp op = c.op == ReduceOp::kAverage ? ReduceOp::kSum : c.op;
    Misaligned out(c.bytes(), random_() % 64);
    std::vector<const void*> pointers;
    for (const Bytes& input : c.inputs) pointers.push_back(input.data());
    ReduceInNode(c.dtype, c.op, out.data(), pointers, c.elements);
    ASSERT_EQ(out.Read(c.bytes()), reference::Reduce(c.dtype, op, c.inputs, c.elements, 1));
    out.ExpectGuardsIntact();
  });
}

// All 65536 values of a 16-bit type against partners that carry, cancel, overflow and round.
TEST_P(ReduceTest, EverySixteenBitValueIsSummedRight) {
  Bytes all(65536 * 2);
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    std::memcpy(all.data() + 2 * i, &bits, 2);
  }
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const uint64_t partner : SpecialValues(dtype)) {
      for (const ReduceOp op : kAllOps) {
        Bytes other(all.size());
        for (size_t i = 0; i < 65536; ++i) std::memcpy(other.data() + 2 * i, &partner, 2);
        const std::vector<Bytes> inputs = {all, other};
        Bytes out(all.size());
        const void* pointers[] = {all.data(), other.data()};
        Reduce(dtype, op, out.data(), pointers, 65536, 3);
        ASSERT_EQ(out, reference::Reduce(dtype, op, inputs, 65536, 3))
            << Name(dtype) << " " << Name(op) << " partner " << partner;
      }
    }
  }
}

// The narrowing of arbitrary accumulators: all kinds of float32 bits to both 16-bit types.
TEST_P(ReduceTest, AccumulatorsAreNarrowedRight) {
  constexpr size_t kElements = 65536 * 3;
  std::vector<uint32_t> acc(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const uint32_t upper = static_cast<uint32_t>(i / 3) << 16;
    acc[i] = i % 3 == 0 ? upper | static_cast<uint32_t>(random_() & 0xffff)
                        : upper | (i % 3 == 1 ? 0x8000 : 0x1000);
  }
  for (const auto& [dtype, exponent_bits, mantissa_bits] :
       {std::tuple{DType::kFloat16, 5, 10}, std::tuple{DType::kBFloat16, 8, 7}}) {
    std::vector<uint16_t> out(kElements);
    Finish(dtype, ReduceOp::kSum, out.data(), acc.data(), kElements, 1);
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(out[i],
                reference::Encode(std::bit_cast<float>(acc[i]), exponent_bits, mantissa_bits))
          << std::hex << acc[i];
    }
  }
}

template <typename T>
T ReduceOne(DType dtype, ReduceOp op, const std::vector<T>& values, uint32_t divisor = 1) {
  T out{};
  std::vector<const void*> pointers;
  for (const T& v : values) pointers.push_back(&v);
  Reduce(dtype, op, &out, pointers, 1, divisor);
  return out;
}

TEST_P(ReduceTest, TheNumericsInExamples) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto bits = [](float f) { return std::bit_cast<uint32_t>(f); };
  const auto sum = [&](std::vector<float> v) {
    return bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kSum, v));
  };
  EXPECT_EQ(sum({-0.0f}), 0x80000000u);
  EXPECT_EQ(sum({-0.0f, -0.0f}), 0x80000000u) << "the sum does not start from +0";
  EXPECT_EQ(sum({inf, -inf}), 0x7fc00000u);
  EXPECT_EQ(sum({std::bit_cast<float>(0xff800001u)}), 0x7fc00000u)
      << "a NaN is canonical even alone";
  EXPECT_EQ(sum({1e8f, 1.0f, -1e8f}), bits((1e8f + 1.0f) - 1e8f)) << "the order is the caller's";
  EXPECT_EQ(sum({std::bit_cast<float>(1u), std::bit_cast<float>(1u)}), 2u) << "denormals";
  EXPECT_EQ(bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kAverage, {5.0f}, 3)),
            bits(5.0f / 3.0f));
  EXPECT_EQ(bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kMin, {0.0f, -0.0f})), 0u);
  EXPECT_EQ(bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kMax, {-0.0f, 0.0f})), 0x80000000u);
  EXPECT_EQ(bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kMin, {1.0f, std::nanf("")})),
            0x7fc00000u);
  EXPECT_EQ(bits(ReduceOne<float>(DType::kFloat32, ReduceOp::kMax, {std::nanf(""), 1.0f})),
            0x7fc00000u);
  EXPECT_EQ(ReduceOne<uint16_t>(DType::kFloat16, ReduceOp::kSum, {0x7bff, 0x7bff}), 0x7c00)
      << "65504 + 65504";
  EXPECT_EQ(ReduceOne<uint16_t>(DType::kFloat16, ReduceOp::kAverage, {0x7bff, 0x7bff}, 2), 0x7bff)
      << "one rounding, after the division";
  EXPECT_EQ(ReduceOne<int32_t>(DType::kInt32, ReduceOp::kSum, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(ReduceOne<int32_t>(DType::kInt32, ReduceOp::kAverage, {-7, 0}, 2), -3)
      << "towards zero";
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, ReduceOp::kAverage, {INT64_MIN, 0}, 1), INT64_MIN);
}

TEST_P(ReduceTest, StartInPlaceLeavesTheBits) {
  for (const DType dtype : kAllDTypes) {
    if (AccumulatorSizeOf(dtype) != SizeOf(dtype)) continue;
    Bytes data = RandomInput(dtype, 1023, random_);
    const Bytes before = data;
    const void* const one = data.data();
    Start(dtype, ReduceOp::kSum, data.data(), {&one, 1}, 1023);
    EXPECT_EQ(data, before) << Name(dtype);
  }
}

}  // namespace
}  // namespace addend
