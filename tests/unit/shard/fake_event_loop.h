// An EventLoop without a thread: the test runs its turns, and passes its time.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lib/shard/event_loop.h"
#include "tests/unit/shard/fake_loop.h"

namespace addend {

class FakeEventLoop final : public EventLoop {
 public:
  FakeEventLoop()
      : EventLoop(std::make_shared<Mailbox>(
            "fake", [] {}, 1)) {}
  absl::Time Now() const override { return loop_.Now(); }
  int64_t TraceTime() const override { return loop_.TraceTime(); }
  void Defer(Task task) override { loop_.Defer(std::move(task)); }
  uint64_t RunAfter(absl::Duration delay, Task task) override {
    return loop_.RunAfter(delay, std::move(task));
  }
  void Run(Task task) override { task(); }
  void Stop() override {}
  bool InLoop() const override { return true; }
  absl::Status Watch(int fd, uint32_t events, FdHandler* handler) override {
    if (refusal.ok()) watched_[fd] = {events, handler};
    return refusal;
  }
  void Modify(int fd, uint32_t events) override { watched_.at(fd).events = events; }
  void Unwatch(int fd) override { watched_.erase(fd); }
  void Cancel(uint64_t) override {}

  // Calls the handlers of the descriptors that are ready, and runs the deferred tasks.
  void Turn() {
    std::vector<pollfd> ready;
    for (const auto& [fd, watch] : watched_) {
      ready.push_back({.fd = fd, .events = static_cast<int16_t>(watch.events), .revents = 0});
    }
    ::poll(ready.data(), ready.size(), /*timeout=*/0);
    for (const pollfd& one : ready) {
      const auto watch = watched_.find(one.fd);  // unless another handler has unwatched it
      if (one.revents == 0 || watch == watched_.end()) continue;
      watch->second.handler->OnReady(static_cast<uint32_t>(one.revents));
    }
    Settle();
  }
  // Runs the tasks that are posted and deferred.
  void Settle() {
    for (Task& task : mailbox()->Take()) task();
    loop_.Settle();
  }
  void Pass(absl::Duration time) {
    Settle();
    loop_.Pass(time);
  }
  // The loop's tasks and time.
  FakeLoop* tasks() { return &loop_; }
  // The events for which the descriptor is watched; 0: it is not watched.
  uint32_t EventsOf(int fd) const {
    const auto watch = watched_.find(fd);
    return watch == watched_.end() ? 0 : watch->second.events;
  }
  size_t watched() const { return watched_.size(); }

  absl::Status refusal;  // of Watch()

 private:
  struct Watched {
    uint32_t events;
    FdHandler* handler;
  };
  FakeLoop loop_;
  std::map<int, Watched> watched_;
};

}  // namespace addend
