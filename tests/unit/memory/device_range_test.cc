#include "lib/memory/device_range.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "lib/memory/arena.h"
#include "lib/memory/mappings.h"

namespace addend {
namespace {

constexpr size_t kBytes = 1 << 20;

UniqueFd Stand() { return UniqueFd(::memfd_create("dmabuf", MFD_CLOEXEC)); }

TEST(DeviceRangeTest, ItsAddressesNameTheDmaBuf) {
  UniqueFd fd = Stand();
  const int number = fd.get();
  const auto range = *DeviceRange::Reserve(std::move(fd), kBytes);
  ASSERT_EQ(range->memory().size(), kBytes);
  const Mapping found = FindMapping(range->memory().subspan(4096, 100));
  EXPECT_EQ(found.memory.data(), range->memory().data());
  EXPECT_EQ(found.memory.size(), kBytes);
  EXPECT_EQ(found.dmabuf, number);
}

TEST(DeviceRangeTest, ArenasHaveNone) {
  const auto arena = *Arena::Create(kBytes);
  const Mapping found = FindMapping(arena->memory());
  EXPECT_FALSE(found.memory.empty());
  EXPECT_EQ(found.dmabuf, -1);
}

TEST(DeviceRangeTest, ItsUnmappingIsReportedToObservers) {
  struct Observer : UnmapObserver {
    void BeforeUnmap(const Mapping& mapping) override { seen = mapping.memory; }
    Bytes seen;
  };
  const auto observer = std::make_shared<Observer>();
  ObserveUnmapping(observer);
  auto range = *DeviceRange::Reserve(Stand(), kBytes);
  const Bytes memory = range->memory();
  range.reset();
  EXPECT_EQ(observer->seen.data(), memory.data());
  EXPECT_EQ(observer->seen.size(), kBytes);
  EXPECT_TRUE(FindMapping(memory).memory.empty());
}

TEST(DeviceRangeTest, ProcessorsCannotReadIt) {
  const auto range = *DeviceRange::Reserve(Stand(), kBytes);
  // write() reads it, and the kernel says so instead of a signal.
  const UniqueFd file = Stand();
  EXPECT_EQ(::write(file.get(), range->memory().data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
}

}  // namespace
}  // namespace addend
