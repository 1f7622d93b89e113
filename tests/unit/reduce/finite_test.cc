#include "lib/reduce/finite.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace addend {
namespace {

template <typename T>
void FindsEachPosition(DType dtype, T finite, const std::vector<T>& others) {
  for (const size_t elements : {1, 7, 1024, 5000}) {
    // Misaligned by a byte: payloads from a network need not be aligned.
    std::vector<uint8_t> bytes(elements * sizeof(T) + 1);
    uint8_t* const data = bytes.data() + 1;
    for (size_t i = 0; i < elements; ++i) std::memcpy(data + i * sizeof(T), &finite, sizeof(T));
    EXPECT_FALSE(FirstNonFinite(dtype, data, elements).has_value()) << elements;
    for (const T other : others) {
      for (const size_t at : {size_t{0}, elements / 2, elements - 1}) {
        std::memcpy(data + at * sizeof(T), &other, sizeof(T));
        EXPECT_EQ(FirstNonFinite(dtype, data, elements), at) << elements;
        std::memcpy(data + at * sizeof(T), &finite, sizeof(T));
      }
    }
  }
}

TEST(FirstNonFiniteTest, FindsInfinitiesAndNaNsOfEveryFloatingType) {
  const float inf = std::numeric_limits<float>::infinity();
  FindsEachPosition<float>(DType::kFloat32, std::numeric_limits<float>::max(),
                           {inf, -inf, std::nanf(""), -std::nanf("1")});
  const double dinf = std::numeric_limits<double>::infinity();
  FindsEachPosition<double>(DType::kFloat64, -std::numeric_limits<double>::max(),
                            {dinf, -dinf, std::nan("")});
  FindsEachPosition<uint16_t>(DType::kFloat16, 0x7bff, {0x7c00, 0xfc00, 0x7e00, 0xffff});
  FindsEachPosition<uint16_t>(DType::kBFloat16, 0x7f7f, {0x7f80, 0xff80, 0x7fc0, 0xffff});
}

TEST(FirstNonFiniteTest, NamesTheFirstOfSeveral) {
  std::vector<float> values(3000, 1.0f);
  values[2500] = std::nanf("");
  values[1500] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FirstNonFinite(DType::kFloat32, values.data(), values.size()), 1500u);
}

TEST(FirstNonFiniteTest, ReadsNothingBehindTheElements) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const behind = static_cast<uint8_t*>(mapped) + page;
  ASSERT_EQ(::mprotect(behind, page, PROT_NONE), 0);
  // Whole blocks of the search, and a rest.
  for (const size_t elements : {size_t{1}, size_t{1000}, page / sizeof(float)}) {
    const uint8_t* const data = behind - elements * sizeof(float);
    EXPECT_FALSE(FirstNonFinite(DType::kFloat32, data, elements).has_value()) << elements;
  }
  for (const size_t elements : {size_t{1}, size_t{1024}, page / sizeof(uint16_t)}) {
    const uint8_t* const data = behind - elements * sizeof(uint16_t);
    EXPECT_FALSE(FirstNonFinite(DType::kFloat16, data, elements).has_value()) << elements;
  }
  ::munmap(mapped, 2 * page);
}

TEST(FirstNonFiniteTest, IntegersAndEmptyInputsAreFinite) {
  const std::vector<int32_t> values(100, 0x7f800000);
  EXPECT_FALSE(FirstNonFinite(DType::kInt32, values.data(), values.size()).has_value());
  EXPECT_FALSE(FirstNonFinite(DType::kFloat32, values.data(), 0).has_value());
}

}  // namespace
}  // namespace addend
