#include "lib/options/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/flags/marshalling.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

TEST(HostPortTest, ReadsEveryForm) {
  EXPECT_EQ(*ParseHostPort(":7070"), (HostPort{"", 7070}));
  EXPECT_EQ(*ParseHostPort("127.0.0.1:0"), (HostPort{"127.0.0.1", 0}));
  EXPECT_EQ(*ParseHostPort("scheduler.addend:65535"), (HostPort{"scheduler.addend", 65535}));
  EXPECT_EQ(*ParseHostPort("[::1]:7070"), (HostPort{"::1", 7070}));
}

TEST(HostPortTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "7070", "host", "host:", "host:x", "host:65536", "host:-1", "::1:7070", "[::1:7070",
        "[]:7070", "[::1]", "http://host:80", "a b:1", "host:1 "}) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
}

TEST(HostPortTest, WritesWhatItReads) {
  for (const char* text : {":7070", "127.0.0.1:0", "host:1", "[fe80::1]:7070"}) {
    EXPECT_EQ(ParseHostPort(text)->ToString(), text);
  }
}

TEST(HostPortTest, AnOptionalListenerCanBeOff) {
  OptionalHostPort value;
  std::string error;
  ASSERT_TRUE(absl::ParseFlag(":0", &value, &error));
  EXPECT_EQ(value.address, (HostPort{"", 0}));
  for (const char* text : {"", "off"}) {
    ASSERT_TRUE(absl::ParseFlag(text, &value, &error));
    EXPECT_FALSE(value.address.has_value());
    EXPECT_EQ(AbslUnparseFlag(value), "off");
  }
  EXPECT_FALSE(absl::ParseFlag("on", &value, &error));
}

TEST(HostPortTest, APeerHasHostAndPort) {
  PeerAddresses value;
  std::string error;
  EXPECT_TRUE(absl::ParseFlag("host:7070", &value, &error));
  EXPECT_EQ(value.ToString(), "host:7070");
  EXPECT_FALSE(absl::ParseFlag(":7070", &value, &error));
  EXPECT_THAT(error, HasSubstr("write HOST:PORT"));
  EXPECT_FALSE(absl::ParseFlag("host:0", &value, &error));
}

TEST(HostPortTest, PeersAreSeparatedByCommas) {
  PeerAddresses value;
  std::string error;
  EXPECT_TRUE(absl::ParseFlag("a:1,[::1]:2", &value, &error)) << error;
  ASSERT_EQ(value.addresses.size(), 2u);
  EXPECT_EQ(value.addresses[1].host, "::1");
  EXPECT_EQ(value.ToString(), "a:1,[::1]:2");
  EXPECT_FALSE(absl::ParseFlag("a:1,b", &value, &error));
  EXPECT_FALSE(absl::ParseFlag("a:1,", &value, &error));
}

}  // namespace
}  // namespace addend
