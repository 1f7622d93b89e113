#include "lib/base/usable_cpus.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(UsableCpusTest, AContainersLimitIsAQuotaOfAPeriod) {
  EXPECT_EQ(CpusOfQuota("max", 100000), 0);
  EXPECT_EQ(CpusOfQuota("150000", 100000), 1.5);
  EXPECT_EQ(CpusOfQuota("", 100000), 0);
  EXPECT_EQ(CpusOfQuota("150000", 0), 0);
}

TEST(UsableCpusTest, AThreadThatIsPinnedHasOne) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCpus(), 1);
  ::sched_setaffinity(0, sizeof(before), &before);
  EXPECT_LE(UsableCpus(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace addend
