#include "lib/rpc/local_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(IsLoopback, HoldsForTheLoopbackNetworkOnly) {
  for (const char* host : {"127.0.0.1", "127.0.0.2", "127.255.255.255", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "128.0.0.1", "0.0.0.0", "::", "fe80::1", "a.example", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(LocalAddressTowards, IsTheAddressThatTheRouteUses) {
  const auto address = LocalAddressTowards({"127.0.0.1", 7070});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
}

TEST(AddressOfInterface, IsThatOfTheNamedInterface) {
  const auto address = AddressOfInterface("lo");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
}

TEST(AddressOfInterface, NamesTheInterfacesThatThereAreIfTheNameIsWrong) {
  const absl::Status wrong = AddressOfInterface("net7").status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), testing::HasSubstr("no interface 'net7'"));
  EXPECT_THAT(std::string(wrong.message()), testing::HasSubstr("lo"));
}

}  // namespace
}  // namespace addend
