#include "lib/options/stop_signal.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"

namespace addend {
namespace {

// Keeps the mask of signals from one test to the next.
class StopSignalTest : public ::testing::Test {
 protected:
  StopSignalTest() { pthread_sigmask(SIG_SETMASK, nullptr, &mask_); }
  ~StopSignalTest() override { pthread_sigmask(SIG_SETMASK, &mask_, nullptr); }

 private:
  sigset_t mask_;
};

TEST_F(StopSignalTest, TakesASignalAndRemembersIt) {
  StopSignal stop;
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(stop.Wait(absl::InfiniteDuration()), SIGTERM);
  EXPECT_EQ(stop.Wait(absl::ZeroDuration()), SIGTERM);
  EXPECT_TRUE(stop.WaitUntilStopped().ok());
}

TEST_F(StopSignalTest, SignalThatTheParentProcessIgnoresStaysIgnored) {
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

TEST_F(StopSignalTest, WaitingBeginsAnewAfterARequestToStop) {
  StopSignal stop;
  stop.RequestStop(absl::UnavailableError("first"));
  EXPECT_EQ(stop.WaitUntilStopped(), absl::UnavailableError("first"));
  stop.Resume();
  EXPECT_EQ(stop.stop_requested(), std::nullopt);
  EXPECT_EQ(stop.Wait(absl::Milliseconds(20)), std::nullopt);
  stop.RequestStop(absl::InternalError("second"));
  EXPECT_EQ(stop.WaitUntilStopped(), absl::InternalError("second"));
}

TEST_F(StopSignalTest, WaitsNoLongerThanAsked) {
  StopSignal stop;
  EXPECT_EQ(stop.Wait(absl::Milliseconds(20)), std::nullopt);
  EXPECT_EQ(stop.Wait(absl::ZeroDuration()), std::nullopt);
}

TEST_F(StopSignalTest, AnotherThreadCanEndTheWaiting) {
  StopSignal stop;
  std::thread other([&stop] {
    stop.RequestStop(absl::UnavailableError("first"));
    stop.RequestStop(absl::InternalError("second"));
  });
  EXPECT_EQ(stop.WaitUntilStopped(), absl::UnavailableError("first"));
  other.join();
  EXPECT_EQ(stop.Wait(absl::InfiniteDuration()), std::nullopt);
}

TEST_F(StopSignalTest, AWantedEndIsWaitedForAlsoAfterAComponentHasGivenUp) {
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

TEST_F(StopSignalTest, ThreadsInheritTheBlockedSignals) {
  StopSignal stop;
  bool blocked = false;
  std::thread([&blocked] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
  }).join();
  EXPECT_TRUE(blocked);
}

TEST_F(StopSignalTest, ASecondSignalHasItsUsualEffect) {
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

TEST_F(StopSignalTest, ASignalDoesNotChangeTheStatusOfAProcessThatEndsByItself) {
  EXPECT_EXIT(
      {
        {
          StopSignal stop;
          stop.RequestStop(absl::OkStatus());
          stop.WaitUntilStopped().IgnoreError();
          ::kill(::getpid(), SIGTERM);
        }
        ::kill(::getpid(), SIGTERM);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace addend
