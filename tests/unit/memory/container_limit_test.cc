#include "lib/memory/container_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace addend {
namespace {

class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() : root_(testing::TempDir() + "container-limit") {
    std::filesystem::remove_all(root_);
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string root_;
};

TEST_F(MemoryLimitTest, TheSmallestLimitOnTheWayUpCountsInVersion2) {
  Write("/proc/self/cgroup", "0::/kubepods/pod\n");
  Write("/sys/fs/cgroup/kubepods/pod/memory.max", "max\n");
  Write("/sys/fs/cgroup/kubepods/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/memory.max", "2000000\n");
  const MemoryFacts facts = ReadMemory(root_);
  EXPECT_EQ(facts.limit_bytes, 1000000u);
  EXPECT_EQ(facts.source, "/sys/fs/cgroup/kubepods/memory.max");
}

TEST_F(MemoryLimitTest, TheLimitOfVersion1IsFoundWhereTheContainerSeesIt) {
  Write("/proc/self/cgroup", "9:cpu:/docker/1\n4:memory:/docker/1\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n");
  EXPECT_EQ(ReadMemory(root_).limit_bytes, 67108864u);
}

TEST_F(MemoryLimitTest, AHugeNumberIsNoLimit) {
  Write("/proc/self/cgroup", "4:memory:/\n");
  Write("/proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadMemory(root_).limit_bytes, 0u);
  EXPECT_EQ(ReadMemory(root_).machine_bytes, 1u << 20);
  EXPECT_EQ(ReadMemory(root_).usable_bytes(), 1u << 20);
}

}  // namespace
}  // namespace addend
