#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>

#include "lib/transport/tcp/socket.h"

namespace addend::tcp {
namespace {

constexpr int kTcpRtoMinUs = 45;  // of Linux, since 6.15

// Empty: the kernel does not know the option.
std::optional<int> OptionOf(const UniqueFd& socket, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  if (::getsockopt(socket.get(), IPPROTO_TCP, name, &value, &length) != 0) return std::nullopt;
  return value;
}

void SetRtoMinUs(const UniqueFd& socket, int value) {
  ASSERT_EQ(::setsockopt(socket.get(), IPPROTO_TCP, kTcpRtoMinUs, &value, sizeof(value)), 0);
}

UniqueFd NewSocket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(TcpSocketTest, SmallFramesAreSentAtOnceAndUnsentBytesAreBounded) {
  const UniqueFd socket = NewSocket();
  Tune(socket.get(), 12345);
  EXPECT_EQ(OptionOf(socket, TCP_NODELAY), 1);
  EXPECT_EQ(OptionOf(socket, TCP_NOTSENT_LOWAT), 12345);
}

TEST(TcpSocketTest, LossOfTheLastSegmentsIsNoticedSoonWhereTheKernelAllowsIt) {
  const UniqueFd socket = NewSocket();
  if (!OptionOf(socket, kTcpRtoMinUs)) GTEST_SKIP() << "Linux has TCP_RTO_MIN_US from 6.15 on";
  // Whatever net.ipv4.tcp_rto_min_us is here. The kernel counts in ticks.
  SetRtoMinUs(socket, 200'000);
  Tune(socket.get(), 1 << 20);
  EXPECT_GE(OptionOf(socket, kTcpRtoMinUs), 30'000);
  EXPECT_LE(OptionOf(socket, kTcpRtoMinUs), 50'000);
}

TEST(TcpSocketTest, ShorterTimeOfTheSystemForLostSegmentsStays) {
  const UniqueFd socket = NewSocket();
  if (!OptionOf(socket, kTcpRtoMinUs)) GTEST_SKIP() << "Linux has TCP_RTO_MIN_US from 6.15 on";
  SetRtoMinUs(socket, 20'000);
  Tune(socket.get(), 1 << 20);
  EXPECT_LT(OptionOf(socket, kTcpRtoMinUs), 30'000);
}

}  // namespace
}  // namespace addend::tcp
