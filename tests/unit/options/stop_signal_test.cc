#include "lib/options/stop_signal.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"

namespace addend {
namespace {

TEST(StopSignalTest, TakesASignalAndRemembersIt) {
  StopSignal stop;
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(stop.Wait(absl::InfiniteDuration()), SIGTERM);
  EXPECT_EQ(stop.Wait(absl::ZeroDuration()), SIGTERM);
  EXPECT_TRUE(stop.WaitUntilStopped().ok());
}

TEST(StopSignalTest, SignalThatTheParentProcessIgnoresStaysIgnored) {
  ::signal(SIGTERM, SIG_IGN);
  {
    StopSignal stop;
    ::kill(::getpid(), SIGTERM);
    EXPECT_EQ(stop.Wait(absl::Milliseconds(20)), std::nullopt);
    ::kill(::getpid(), SIGINT);
    EXPECT_EQ(stop.Wait(absl::InfiniteDuration()), SIGINT);
  }
  ::signal(SIGTERM, SIG_DFL);
}

TEST(StopSignalTest, WaitsNoLongerThanAsked) {
  StopSignal stop;
  EXPECT_EQ(stop.Wait(absl::Milliseconds(20)), std::nullopt);
  EXPECT_EQ(stop.Wait(absl::ZeroDuration()), std::nullopt);
}

TEST(StopSignalTest, AnotherThreadCanEndTheWaiting) {
  StopSignal stop;
  std::thread other([&stop] {
    stop.RequestStop(absl::UnavailableError("first"));
    stop.RequestStop(absl::InternalError("second"));
  });
  EXPECT_EQ(stop.WaitUntilStopped(), absl::UnavailableError("first"));
  other.join();
  EXPECT_EQ(stop.Wait(absl::InfiniteDuration()), std::nullopt);
}

TEST(StopSignalTest, AWantedEndIsWaitedForAlsoAfterAComponentHasGivenUp) {
  StopSignal stop;
  stop.RequestStop(absl::UnavailableError("first"));
  std::thread other([] {
    absl::SleepFor(absl::Milliseconds(20));
    ::kill(::getpid(), SIGTERM);
  });
  stop.WaitForSignal();
  EXPECT_EQ(stop.Wait(absl::ZeroDuration()), SIGTERM);
  other.join();
}

TEST(StopSignalTest, ThreadsInheritTheBlockedSignals) {
  StopSignal stop;
  bool blocked = false;
  std::thread([&blocked] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
  }).join();
  EXPECT_TRUE(blocked);
}

TEST(StopSignalTest, ASecondSignalHasItsUsualEffect) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        ::kill(::getpid(), SIGINT);
        stop.Wait(absl::InfiniteDuration());
        ::kill(::getpid(), SIGINT);
        ::pause();
      },
      ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace addend
