#include "lib/shard/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace addend {
namespace {

TEST(EventLoopTest, TasksOfOnePosterRunInOrder) {
  auto loop = *EventLoop::Start("test");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(loop->Post([&order, i] { order.push_back(i); }).ok());
  loop->Run([] {});
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(EventLoopTest, FullMailboxIsAStatusAndIsCounted) {
  auto loop = *EventLoop::Start("test", /*mailbox_capacity=*/4);
  Mutex mu;
  std::atomic<bool> busy{false};
  mu.Lock();
  ASSERT_TRUE(loop->Post([&] {
                    busy = true;
                    MutexLock wait(&mu);
                  })
                  .ok());
  while (!busy) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(loop->Post([] {}).ok());
  const absl::Status fifth = loop->Post([] {});
  mu.Unlock();
  EXPECT_EQ(fifth.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(loop->stats().posts_rejected, 1u);
}

TEST(EventLoopTest, NothingRunsAfterStop) {
  auto loop = *EventLoop::Start("test");
  loop->Stop();
  EXPECT_EQ(loop->Post([] { FAIL(); }).code(), absl::StatusCode::kCancelled);
  loop->Run([] { FAIL(); });  // returns, and runs nothing
}

TEST(EventLoopTest, MailboxOutlivesTheLoopAndDestroysWhatIsPosted) {
  auto loop = *EventLoop::Start("test");
  const std::shared_ptr<Mailbox> mailbox = loop->mailbox();
  loop.reset();
  auto lent = std::make_shared<int>(1);
  mailbox->PostSurely([lent] { FAIL(); });
  EXPECT_EQ(lent.use_count(), 1) << "the task is destroyed at once";
  EXPECT_EQ(mailbox->Post([] { FAIL(); }).message(), "the loop test has stopped");
}

TEST(EventLoopTest, TasksThatDidNotRunAreDestroyedByStop) {
  auto loop = *EventLoop::Start("test");
  auto lent = std::make_shared<int>(1);
  std::atomic<bool> running = false;
  std::atomic<bool> go_on = false;
  loop->PostSurely([&] {
    running = true;
    while (!go_on) std::this_thread::yield();
  });
  while (!running) std::this_thread::yield();
  loop->PostSurely([lent] { FAIL(); });
  std::thread stopper([&] { loop->Stop(); });
  while (!absl::IsCancelled(loop->Post([] {}))) std::this_thread::yield();
  go_on = true;
  stopper.join();
  EXPECT_EQ(lent.use_count(), 1);
}

TEST(EventLoopTest, DeferredTasksRunAfterTheCurrentTask) {
  auto loop = *EventLoop::Start("test");
  std::string order;
  loop->Run([&] {
    loop->Defer([&] { order += 'b'; });
    order += 'a';
  });
  loop->Run([] {});
  EXPECT_EQ(order, "ab");
}

TEST(EventLoopTest, TimersRunInTheOrderOfTheirTimeAndCanBeCancelled) {
  auto loop = *EventLoop::Start("test");
  Mutex mu;
  CondVar cv;
  std::string order;
  bool done = false;
  loop->Run([&] {
    loop->RunAfter(absl::Milliseconds(20), [&] {
      MutexLock lock(&mu);
      order += 'c';
      done = true;
      cv.NotifyAll();
    });
    const uint64_t cancelled = loop->RunAfter(absl::Milliseconds(5), [&] { order += 'x'; });
    loop->RunAfter(absl::Milliseconds(1), [&] { order += 'a'; });
    loop->Cancel(cancelled);
  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  EXPECT_EQ(order, "ac");
}

class CountingHandler : public FdHandler {
 public:
  explicit CountingHandler(EventLoop* loop, int fd) : loop_(loop), fd_(fd) {}
  void OnReady(uint32_t events) override {
    EXPECT_TRUE(events & EPOLLIN);
    ++count;
    loop_->Unwatch(fd_);
  }
  int count = 0;

 private:
  EventLoop* const loop_;
  const int fd_;
};

TEST(EventLoopTest, UnwatchedDescriptorRunsNoHandler) {
  auto loop = *EventLoop::Start("test");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  CountingHandler handler(loop.get(), ends[0]);
  loop->Run([&] { ASSERT_TRUE(loop->Watch(ends[0], EPOLLIN, &handler).ok()); });
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  for (int i = 0; i < 50; ++i) loop->Run([] {});
  loop->Run([&] { EXPECT_LE(handler.count, 1); });
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(EventLoopTest, LoopMayLookForEventsBeforeItSleeps) {
  const auto sleeps = *EventLoop::Start("test");
  const auto looks =
      *EventLoop::Start("test", EventLoop::kMailboxCapacity, std::chrono::seconds(10));
  for (EventLoop* loop : {sleeps.get(), looks.get()}) {
    for (int i = 0; i < 3; ++i) loop->Run([] {});
  }
  EXPECT_EQ(sleeps->spun().count(), 0);
  EXPECT_GT(looks->spun().count(), 0);
}

TEST(EventLoopTest, TimerEndsTheLookForEvents) {
  const auto loop = *EventLoop::Start("test", EventLoop::kMailboxCapacity, std::chrono::hours(1));
  std::promise<void> due;
  loop->Run([&] { loop->RunAfter(absl::Milliseconds(5), [&] { due.set_value(); }); });
  EXPECT_EQ(due.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(EventLoopTest, FullMailboxRefusesPostsAndAcceptsRun) {
  auto loop = *EventLoop::Start("test", /*mailbox_capacity=*/2);
  std::atomic<bool> running = false;
  std::atomic<bool> go_on = false;
  ASSERT_TRUE(loop->Post([&] {
                    running = true;
                    while (!go_on) std::this_thread::yield();
                  })
                  .ok());
  while (!running) std::this_thread::yield();
  int posted = 0;
  ASSERT_TRUE(loop->Post([&] { ++posted; }).ok());
  ASSERT_TRUE(loop->Post([&] { ++posted; }).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(loop->Post([] {})));
  loop->PostSurely([&] { ++posted; });
  std::thread opener([&] {
    while (loop->stats().mailbox_depth_max < 4) std::this_thread::yield();
    go_on = true;
  });
  int ran = 0;
  loop->Run([&] { ran = posted; });
  EXPECT_EQ(ran, 3);  // after the tasks that had been posted before
  opener.join();
}

}  // namespace
}  // namespace addend
