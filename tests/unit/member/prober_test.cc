#include "lib/member/prober.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/member/round_trip.h"

namespace addend {
namespace {

// A port of this machine that takes connections, but answers none.
class SilentPort {
 public:
  SilentPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(fd_.get(), 128), 0);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
  }
  std::string address() const { return absl::StrFormat("127.0.0.1:%d", port_); }
  void Close() { fd_.Reset(); }

 private:
  UniqueFd fd_;
  uint16_t port_ = 0;
};

bool Never() { return false; }

TEST(RoundTripTest, TheKernelMeasuresWithoutTheOtherProcess) {
  const SilentPort port;
  const auto least = LeastRoundTrip(port.address(), 16, Never);
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_GT(*least, absl::ZeroDuration());
  EXPECT_LT(*least, absl::Seconds(1));
}

TEST(RoundTripTest, NobodyAnswersAtAClosedPort) {
  SilentPort port;
  port.Close();
  EXPECT_TRUE(absl::IsUnavailable(LeastRoundTrip(port.address(), 4, Never).status()));
}

TEST(RoundTripTest, NamesAreNotLookedUp) {
  EXPECT_TRUE(absl::IsInvalidArgument(LeastRoundTrip("localhost:80", 1, Never).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LeastRoundTrip("nonsense", 1, Never).status()));
}

TEST(RoundTripTest, ItCanBeGivenUp) {
  const SilentPort port;
  EXPECT_TRUE(absl::IsCancelled(LeastRoundTrip(port.address(), 4, [] { return true; }).status()));
}

internal::Prober::Targets TargetsAt(const std::string& address) {
  internal::Prober::Targets targets;
  targets.Add()->set_address(address);
  return targets;
}

internal::Prober::Probes AwaitProbe(internal::Prober* prober) {
  internal::Prober::Probes probes;
  while (probes.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    prober->Take(&probes);
  }
  return probes;
}

TEST(ProberTest, EachTargetIsMeasuredAndToldOnce) {
  const SilentPort port;
  internal::Prober prober;
  prober.Measure(TargetsAt(port.address()));
  const internal::Prober::Probes probes = AwaitProbe(&prober);
  ASSERT_EQ(probes.size(), 1);
  EXPECT_EQ(probes[0].address(), port.address());
  EXPECT_GT(probes[0].latency_s(), 0);
  EXPECT_EQ(probes[0].bandwidth_bps(), 0);
  internal::Prober::Probes more;
  prober.Take(&more);
  EXPECT_TRUE(more.empty());
}

TEST(ProberTest, WhoDoesNotAnswerHasNoLatency) {
  SilentPort port;
  port.Close();
  internal::Prober prober;
  prober.Measure(TargetsAt(port.address()));
  EXPECT_EQ(AwaitProbe(&prober)[0].latency_s(), 0);
}

// The port takes the connection of the call, and never answers it.
TEST(ProberTest, AMeasurementOfBandwidthThatHangsEndsWithTheProber) {
  const SilentPort port;
  internal::Prober prober;
  internal::Prober::Targets targets = TargetsAt(port.address());
  targets[0].set_bandwidth_bytes(1 << 20);
  prober.Measure(targets);
  const auto began = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  prober.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

}  // namespace
}  // namespace addend
