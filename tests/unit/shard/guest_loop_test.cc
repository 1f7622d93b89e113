// A guest does what every loop does, on the thread of another.
#include "lib/shard/guest_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/fd.h"

namespace addend {
namespace {

class GuestLoopTest : public testing::Test {
 protected:
  std::unique_ptr<EventLoop> host_ = *EventLoop::Start("host");
  std::unique_ptr<EventLoop> guest_ = MakeGuestLoop(host_.get(), "guest");
};

TEST_F(GuestLoopTest, TasksOfOnePosterRunInOrderOnTheHostsThread) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(guest_
                    ->Post([&, i] {
                      EXPECT_TRUE(host_->InLoop() && guest_->InLoop());
                      order.push_back(i);
                    })
                    .ok());
  }
  guest_->Run([] {});
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

// As two threads would: neither runs within the other.
TEST_F(GuestLoopTest, WhatGuestAndHostPostToEachOtherRunsAfterTheTask) {
  std::vector<std::string> order;
  host_->Run([&] {
    guest_->PostSurely([&] {
      order.push_back("guest");
      host_->PostSurely([&] { order.push_back("host"); });
      order.push_back("guest has posted");
    });
    order.push_back("host has posted");
  });
  while (order.size() < 4) host_->Run([] {});
  EXPECT_EQ(order,
            (std::vector<std::string>{"host has posted", "guest", "guest has posted", "host"}));
}

TEST_F(GuestLoopTest, ItsMailboxHasALimitOfItsOwn) {
  auto small = MakeGuestLoop(host_.get(), "small", /*mailbox_capacity=*/2);
  host_->Run([&] {
    EXPECT_TRUE(small->Post([] {}).ok());
    EXPECT_TRUE(small->Post([] {}).ok());
    EXPECT_EQ(small->Post([] { FAIL(); }).code(), absl::StatusCode::kResourceExhausted);
  });
}

TEST_F(GuestLoopTest, TimersAndDeferredTasksRunAndCanBeCancelled) {
  std::atomic<bool> due{false};
  guest_->Run([&] {
    guest_->Defer([&] { guest_->RunAfter(absl::Milliseconds(1), [&] { due = true; }); });
    guest_->Cancel(guest_->RunAfter(absl::Milliseconds(1), [] { FAIL(); }));
  });
  while (!due) std::this_thread::yield();
}

class Counter final : public FdHandler {
 public:
  void OnReady(uint32_t) override { ++ready; }
  std::atomic<int> ready{0};
};

TEST_F(GuestLoopTest, NothingOfItRunsAfterStopAndTheHostGoesOn) {
  const UniqueFd fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  Counter counter;
  auto lent = std::make_shared<int>(1);
  guest_->Run([&] {
    ASSERT_TRUE(guest_->Watch(fd.get(), EPOLLIN, &counter).ok());
    guest_->RunAfter(absl::Hours(1), [lent] { FAIL(); });
  });
  host_->Run([&] {
    // The guest stops before these have a turn.
    guest_->Defer([lent] {});
  });
  guest_->Stop();
  const int ready = counter.ready;
  EXPECT_EQ(guest_->Post([] { FAIL(); }).code(), absl::StatusCode::kCancelled);
  guest_->Run([] { FAIL(); });  // returns, and runs nothing
  guest_.reset();
  std::atomic<bool> due{false};
  host_->Run([&] { host_->RunAfter(absl::Milliseconds(5), [&] { due = true; }); });
  while (!due) std::this_thread::yield();
  EXPECT_EQ(counter.ready, ready) << "the descriptor is watched no more";
  EXPECT_EQ(lent.use_count(), 1) << "its tasks are destroyed";
}

TEST_F(GuestLoopTest, ManyThreadsPostWhileItStops) {
  for (int round = 0; round < 50; ++round) {
    auto guest = MakeGuestLoop(host_.get(), "guest");
    std::atomic<int> ran{0}, accepted{0};
    std::vector<std::thread> posters;
    for (int i = 0; i < 3; ++i) {
      posters.emplace_back([&] {
        for (int n = 0; n < 100; ++n) {
          if (guest->Post([&] { ++ran; }).ok()) ++accepted;
        }
      });
    }
    guest->Stop();
    const int at_stop = ran;
    for (std::thread& poster : posters) poster.join();
    EXPECT_LE(ran, accepted);
    EXPECT_EQ(ran, at_stop);
  }
}

}  // namespace
}  // namespace addend
