// A copy that leaves the caches alone copies exactly its bytes.
#include "lib/base/copy_past_caches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace addend {
namespace {

TEST(CopyPastCachesTest, CopiesExactlyItsBytesWhereverTheyLie) {
  std::vector<uint8_t> from(1000);
  std::iota(from.begin(), from.end(), uint8_t{1});
  for (size_t bytes = 0; bytes <= 400; ++bytes) {
    for (const size_t source : {size_t{0}, size_t{3}, size_t{64}}) {
      for (const size_t target : {size_t{0}, size_t{1}, size_t{63}, size_t{64}}) {
        std::vector<uint8_t> to(600, 0);
        CopyPastCaches(to.data() + target, from.data() + source, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool copied = i >= target && i < target + bytes;
          ASSERT_EQ(to[i], copied ? from[source + i - target] : 0)
              << bytes << " bytes from " << source << " to " << target << ", byte " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace addend
