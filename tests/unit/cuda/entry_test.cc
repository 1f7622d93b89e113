// The entry of libaddend_cuda.so: an executor, or the reason for its absence.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <fstream>

#include "tests/support/emulated_cuda/emulated.h"
#include "tests/unit/cuda/ranks.h"

namespace addend::client {
namespace {

using ::testing::HasSubstr;

std::string WhyNone(uint32_t version = kDeviceVersion) {
  char why[512] = "";
  Ear ear;
  const std::unique_ptr<DeviceExecutor> executor(
      addend_make_device_executor(version, &ear, why, sizeof(why)));
  EXPECT_EQ(executor == nullptr, why[0] != '\0');
  return why;
}

TEST(DeviceEntryTest, GivesAnExecutorForTheCurrentDevice) {
  const Rank rank(1);
  EXPECT_STREQ(rank.executor->bus_id(), "0000:3b:00.0");
}

TEST(DeviceEntryTest, AnotherVersionIsRefused) {
  EXPECT_THAT(WhyNone(kDeviceVersion + 1), HasSubstr("install both from one build"));
}

TEST(DeviceEntryTest, NoDeviceAndNoDriverAreSentences) {
  emulated_cuda_set("devices", 0);
  EXPECT_THAT(WhyNone(), HasSubstr("no CUDA-capable device is detected"));
  emulated_cuda_set("devices", -1);
  EXPECT_THAT(WhyNone(), HasSubstr("no NVIDIA driver: "));
  emulated_cuda_set("devices", 8);
  EXPECT_EQ(WhyNone(), "");
}

TEST(DeviceEntryTest, TheRealLibrarySaysThatThereIsNoDriver) {
  const std::string path = ADDEND_CUDA_LIBRARY;
  if (path.empty()) GTEST_SKIP() << "this build has no libaddend_cuda.so (no CUDA toolkit)";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto make = reinterpret_cast<MakeDeviceExecutor>(dlsym(library, kDeviceEntry));
  ASSERT_NE(make, nullptr) << dlerror();
  ASSERT_NE(make, &addend_make_device_executor);
  char why[512] = "";
  Ear ear;
  const std::unique_ptr<DeviceExecutor> executor(make(kDeviceVersion, &ear, why, sizeof(why)));
  if (std::ifstream("/proc/driver/nvidia/version").good()) {
    GTEST_SKIP() << "this machine has a driver";
  }
  EXPECT_EQ(executor, nullptr);
  EXPECT_THAT(why, HasSubstr("no NVIDIA driver: "));
}

}  // namespace
}  // namespace addend::client
