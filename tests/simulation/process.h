// A simulated process on a host: its life, its clock, and loops that run in it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/shard/event_loop.h"
#include "tests/simulation/world.h"

namespace addend::simulation {

// Runs tasks while the process runs, keeps them in their order while it is stopped (SIGSTOP, a busy
// machine), and drops them when it is dead.
class Process : public std::enable_shared_from_this<Process> {
 public:
  // `rate`: of its clock, against the true time.
  Process(World* world, std::string name, std::string host, double rate)
      : world_(world), name_(std::move(name)), host_(std::move(host)), rate_(rate) {}

  World* world() const { return world_; }
  const std::string& name() const { return name_; }
  const std::string& host() const { return host_; }
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }

  void Do(Task task);
  // Runs `task` at the end of the turn, which is a task and those that it defers.
  void AtEndOfTurn(Task task);
  // `delay` by the process's clock.
  void After(absl::Duration delay, Task task);
  absl::Time Now() const;
  void Trace(std::string_view what) const { world_->Trace(name_, what); }

  void Stop();
  void Continue();
  // The tasks of the process are never run any more. Its objects are destroyed afterwards.
  void Kill();

 private:
  void RunKept();
  void Turn(Task task);

  World* const world_;
  const std::string name_;
  const std::string host_;
  const double rate_;
  bool alive_ = true;
  bool stopped_ = false;
  bool in_turn_ = false;
  std::deque<Task> ends_;  // of the turn
  std::deque<Task> kept_;
};

// A loop in a process. Has no descriptors.
class Loop final : public EventLoop {
 public:
  static std::unique_ptr<Loop> Make(std::shared_ptr<Process> process, const std::string& name);
  ~Loop() override { Stop(); }

  void Run(Task task) override;
  void Stop() override;
  bool InLoop() const override { return true; }
  absl::Time Now() const override { return process_->Now(); }
  int64_t TraceTime() const override { return absl::ToUnixNanos(process_->Now()); }
  void Defer(Task task) override;
  uint64_t RunAfter(absl::Duration delay, Task task) override;
  void Cancel(uint64_t timer) override;
  absl::Status Watch(int fd, uint32_t events, FdHandler* handler) override;
  void Modify(int, uint32_t) override {}
  void Unwatch(int) override {}

  // Runs the task as an event of the loop, if the loop still exists.
  void Do(Task task);
  const std::shared_ptr<Process>& process() const { return process_; }

 private:
  // Expires with the loop.
  struct Alive {
    Loop* loop;
    bool deferring = false;
    bool waking = false;
  };
  Loop(std::shared_ptr<Process> process, std::shared_ptr<Alive> alive,
       std::shared_ptr<Mailbox> mailbox);
  void RunDeferred();
  void RunMailbox();

  const std::shared_ptr<Process> process_;
  const std::shared_ptr<Alive> alive_;
  std::vector<Task> deferred_;
  uint64_t next_timer_ = 1;
  std::set<uint64_t> timers_;
};

}  // namespace addend::simulation
