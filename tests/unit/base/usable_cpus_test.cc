#include "lib/base/usable_cpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace addend {
namespace {

TEST(UsableCpusTest, AContainersLimitIsAQuotaOfAPeriod) {
  EXPECT_EQ(CpusOfQuota("max", 100000), 0);
  EXPECT_EQ(CpusOfQuota("150000", 100000), 1.5);
  EXPECT_EQ(CpusOfQuota("", 100000), 0);
  EXPECT_EQ(CpusOfQuota("150000", 0), 0);
  EXPECT_EQ(CpusOfQuota("-1", 100000), 0);
}

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() : root_(testing::TempDir() + "usable-cpus") { std::filesystem::remove_all(root_); }
  ~GroupsTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string root_;
  // Of a process that may run on eight processors.
  double Cpus() const { return CpusWithinGroups(8, root_); }
};

TEST_F(GroupsTest, TheSmallestLimitOnTheWayUpCounts) {
  Write("/proc/self/cgroup", "0::/kubepods/pod\n");
  Write("/sys/fs/cgroup/kubepods/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(Cpus(), 8);
  Write("/sys/fs/cgroup/kubepods/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/cpu.max", "190000 100000\n");
  EXPECT_EQ(Cpus(), 1.5);
}

TEST_F(GroupsTest, AContainerFindsItsOwnAtTheRoot) {
  Write("/proc/self/cgroup", "0::/../../the-hosts/path\n");
  Write("/sys/fs/cgroup/cpu.max", "125000 100000\n");
  EXPECT_EQ(Cpus(), 1.25);
}

TEST_F(GroupsTest, Version1HasTwoFiles) {
  Write("/proc/self/cgroup", "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n");
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Cpus(), 8);
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "120000\n");
  EXPECT_EQ(Cpus(), 1.2);
}

TEST_F(GroupsTest, AFractionOfAProcessorIsOne) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(Cpus(), 1);
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
