#include "lib/client/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace addend::client {
namespace {

TEST(CopyTest, CopiesEveryByteAndNoOther) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<uint32_t> words((kPastCachesBytes + 4096) / sizeof(uint32_t));
  for (uint32_t& word : words) word = random();
  const auto* const source = reinterpret_cast<const unsigned char*>(words.data());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'003}, kPastCachesBytes - 1,
                             kPastCachesBytes, kPastCachesBytes + 1, kPastCachesBytes + 127}) {
    for (const auto& [to, from] :
         {std::pair<size_t, size_t>{64, 0}, {65, 0}, {100, 3}, {127, 64}}) {
      std::vector<unsigned char> memory(to + bytes + 64, 0xEE);
      Copy(memory.data() + to, source + from, bytes);
      std::vector<unsigned char> expected(to + bytes + 64, 0xEE);
      std::copy(source + from, source + from + bytes, expected.begin() + static_cast<long>(to));
      ASSERT_TRUE(memory == expected) << bytes << " bytes from " << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace addend::client
