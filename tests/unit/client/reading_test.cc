// Who delivers messages, and for how long a caller looks for them.
#include "lib/client/reading.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace addend::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Nanoseconds kMost = microseconds(200);

TEST(SpinBudgetTest, FollowsTheLastWaitUpToTheMost) {
  SpinBudget budget(kMost);
  EXPECT_EQ(budget.next(), kMost);
  budget.OnWait(microseconds(40), Nanoseconds(500));
  EXPECT_EQ(budget.next(), microseconds(80));
  budget.OnWait(microseconds(10), Nanoseconds(500));
  EXPECT_EQ(budget.next(), SpinBudget::kLeast);
  budget.OnWait(microseconds(150), Nanoseconds(500));
  EXPECT_EQ(budget.next(), kMost);
}

TEST(SpinBudgetTest, EndsAfterWaitsThatItDoesNotCoverAndComesBackAfterARest) {
  SpinBudget budget(kMost);
  for (int i = 0; i < SpinBudget::kMisses; ++i) {
    EXPECT_GT(budget.next(), Nanoseconds::zero());
    budget.OnWait(milliseconds(5), Nanoseconds(500));
  }
  for (int i = 0; i < SpinBudget::kRest; ++i) {
    EXPECT_EQ(budget.next(), Nanoseconds::zero());
    budget.OnWait(microseconds(40), Nanoseconds::zero());
  }
  budget.OnWait(microseconds(40), Nanoseconds::zero());
  EXPECT_EQ(budget.next(), microseconds(80));
}

TEST(SpinBudgetTest, ALongWaitInBetweenDoesNotEndIt) {
  SpinBudget budget(kMost);
  for (int i = 0; i < 100; ++i) {
    budget.OnWait(i % SpinBudget::kMisses == 0 ? microseconds(40) : microseconds(4000), {});
    EXPECT_GT(budget.next(), Nanoseconds::zero());
  }
}

TEST(SpinBudgetTest, EndsAtOnceWhenSomebodyHasATimeSlicesWork) {
  SpinBudget budget(kMost);
  budget.OnWait(milliseconds(3), milliseconds(3));
  EXPECT_EQ(budget.next(), Nanoseconds::zero());
}

TEST(SpinBudgetTest, WithoutAMostThereIsNone) {
  SpinBudget budget(Nanoseconds::zero());
  budget.OnWait(microseconds(40), {});
  EXPECT_EQ(budget.next(), Nanoseconds::zero());
}

// A socket's inbox, of numbers.
class Inbox {
 public:
  void Put(int number) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      waiting_.insert(number);
    }
    came_.notify_all();
  }
  void End() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      over_ = true;
    }
    came_.notify_all();
  }
  Reading::Ways ways() {
    return {.deliver = [this] { return Deliver(); }, .await = [this](int ms) { Await(ms); }};
  }
  bool Delivered(int number) {
    const std::lock_guard<std::mutex> lock(mu_);
    return by_.contains(number);
  }
  std::thread::id by(int number) {
    const std::lock_guard<std::mutex> lock(mu_);
    return by_.at(number);
  }
  std::atomic<bool> two_at_once{false};
  std::atomic<int> awaited{0};

 private:
  Reading::Step Deliver() {
    if (delivering_.exchange(true)) two_at_once = true;
    Reading::Step step = Reading::Step::kNothing;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (over_) {
        step = Reading::Step::kOver;
      } else if (!waiting_.empty()) {
        by_[*waiting_.begin()] = std::this_thread::get_id();
        waiting_.erase(waiting_.begin());
        step = Reading::Step::kDelivered;
      }
    }
    delivering_ = false;
    return step;
  }
  void Await(int ms) {
    ++awaited;
    std::unique_lock<std::mutex> lock(mu_);
    const auto ready = [this] { return over_ || !waiting_.empty(); };
    if (ms < 0) return came_.wait(lock, ready);
    came_.wait_for(lock, milliseconds(ms), ready);
  }

  std::mutex mu_;
  std::condition_variable came_;
  std::set<int> waiting_;
  std::map<int, std::thread::id> by_;
  bool over_ = false;
  std::atomic<bool> delivering_{false};
};

class ReadingTest : public testing::Test {
 protected:
  void TearDown() override {
    inbox_.End();
    reading_.Join();
    EXPECT_FALSE(inbox_.two_at_once);
  }
  void AwaitDelivery(int number) {
    while (!inbox_.Delivered(number)) std::this_thread::yield();
  }
  std::function<bool()> Until(int number) {
    return [this, number] { return inbox_.Delivered(number); };
  }
  Inbox inbox_;
  Reading reading_{inbox_.ways(), kMost};
};

TEST_F(ReadingTest, TheThreadDeliversWhileNobodyWaits) {
  reading_.Start();
  inbox_.Put(1);
  AwaitDelivery(1);
  EXPECT_NE(inbox_.by(1), std::this_thread::get_id());
}

TEST_F(ReadingTest, ACallerDeliversItsOwnMessage) {
  inbox_.Put(1);
  reading_.While(Until(1), std::nullopt);
  EXPECT_EQ(inbox_.by(1), std::this_thread::get_id());
}

TEST_F(ReadingTest, ACallersWaitEndsAtItsDeadline) {
  const auto began = std::chrono::steady_clock::now();
  reading_.While(Until(1), began + milliseconds(20));
  EXPECT_FALSE(inbox_.Delivered(1));
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(20));
}

TEST_F(ReadingTest, ACallerWithoutTimeTakesWhatIsThere) {
  inbox_.Put(1);
  inbox_.Put(2);
  reading_.While(Until(3), std::chrono::steady_clock::now());
  EXPECT_TRUE(inbox_.Delivered(1) && inbox_.Delivered(2));
  EXPECT_EQ(inbox_.awaited, 0);
}

TEST_F(ReadingTest, ACallerSleepsOnceItHasLookedLongEnough) {
  std::thread later([this] {
    std::this_thread::sleep_for(milliseconds(20));
    inbox_.Put(1);
  });
  reading_.While(Until(1), std::nullopt);
  later.join();
  EXPECT_GT(inbox_.awaited, 0);
  EXPECT_GE(reading_.spun(), kMost);
  EXPECT_LT(reading_.spun(), milliseconds(20));
}

TEST_F(ReadingTest, TheThreadGoesOnWhenTheLastCallerHasGone) {
  reading_.Start();
  for (int i = 0; i < 100; ++i) {
    inbox_.Put(i);
    reading_.While(Until(i), std::nullopt);
    AwaitDelivery(i);
  }
  inbox_.Put(100);
  AwaitDelivery(100);
  EXPECT_NE(inbox_.by(100), std::this_thread::get_id());
}

// One of two callers delivers for both; the other's message comes after it has left.
TEST_F(ReadingTest, TheThreadTakesOverWhenItIsAsked) {
  reading_.Start();
  std::thread other([this] { reading_.While(Until(1), std::nullopt); });
  inbox_.Put(1);
  other.join();
  reading_.HandOver();
  inbox_.Put(2);
  AwaitDelivery(2);
}

TEST_F(ReadingTest, MessagesThatOnlyTheThreadMayDeliver) {
  reading_.KeepToThread();
  inbox_.Put(1);
  reading_.While(Until(1), std::nullopt);
  EXPECT_FALSE(inbox_.Delivered(1)) << "the caller returns at once";
  reading_.Start();
  AwaitDelivery(1);
}

TEST_F(ReadingTest, TheEndReachesACallerThatDelivers) {
  reading_.Start();
  std::thread caller([this] { reading_.While(Until(1), std::nullopt); });
  std::this_thread::sleep_for(milliseconds(5));
  inbox_.End();
  caller.join();
  reading_.Join();
  reading_.While(Until(1), std::nullopt);  // returns: all is over
}

TEST_F(ReadingTest, ManyCallersAndTheThreadLoseNothing) {
  reading_.Start();
  constexpr int kEach = 300;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (int i = 0; i < kEach; ++i) {
        const int number = caller * kEach + i;
        inbox_.Put(number);
        reading_.While(Until(number), std::nullopt);
        reading_.HandOver();
        AwaitDelivery(number);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ReadingTest, TheThreadTakesNoSignals) {
  sigset_t blocked;
  sigemptyset(&blocked);
  std::atomic<bool> asked{false};
  Reading reading({.deliver =
                       [&] {
                         pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
                         asked = true;
                         return Reading::Step::kOver;
                       },
                   .await = [](int) {}},
                  kMost);
  reading.Start();
  while (!asked) std::this_thread::yield();
  reading.Join();
  EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
  sigset_t here;
  pthread_sigmask(SIG_SETMASK, nullptr, &here);
  EXPECT_EQ(sigismember(&here, SIGINT), 0);
}

}  // namespace
}  // namespace addend::client
