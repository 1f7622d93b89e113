#include "tests/simulation/process.h"

#include <limits>

namespace addend::simulation {
namespace {

// From the post of a task until the thread of the loop runs.
constexpr absl::Duration kShortestWake = absl::Microseconds(2);
constexpr absl::Duration kLongestWake = absl::Microseconds(30);

}  // namespace

void Process::Do(Task task) {
  if (!alive_) return;
  if (stopped_ || !kept_.empty()) {
    kept_.push_back(std::move(task));
  } else {
    Turn(std::move(task));
  }
}

// A task within a task belongs to the same turn: a call of another thread that waits for the loop.
void Process::Turn(Task task) {
  if (in_turn_) return task();
  in_turn_ = true;
  task();
  while (alive_ && !ends_.empty()) {
    Task end = std::move(ends_.front());
    ends_.pop_front();
    end();
  }
  ends_.clear();
  in_turn_ = false;
}

void Process::AtEndOfTurn(Task task) {
  if (!alive_) return;
  ends_.push_back(std::move(task));
  if (in_turn_) return;
  world_->After(absl::ZeroDuration(), [self = shared_from_this()] { self->Do([] {}); });
}

void Process::After(absl::Duration delay, Task task) {
  world_->After(delay / rate_, [self = shared_from_this(), task = std::move(task)]() mutable {
    self->Do(std::move(task));
  });
}

absl::Time Process::Now() const { return world_->Now() + world_->Elapsed() * (rate_ - 1); }

void Process::Stop() {
  if (alive_) stopped_ = true;
}

void Process::Continue() {
  if (!stopped_) return;
  stopped_ = false;
  RunKept();
}

// As separate events, since a task may stop or kill the process.
void Process::RunKept() {
  if (stopped_ || !alive_ || kept_.empty()) return;
  Task task = std::move(kept_.front());
  Turn(std::move(task));
  if (kept_.empty()) return;  // killed
  kept_.pop_front();
  if (!kept_.empty())
    world_->After(absl::ZeroDuration(), [self = shared_from_this()] { self->RunKept(); });
}

void Process::Kill() {
  alive_ = false;
  stopped_ = false;
  kept_.clear();
  ends_.clear();
}

std::unique_ptr<Loop> Loop::Make(std::shared_ptr<Process> process, const std::string& name) {
  auto alive = std::make_shared<Alive>();
  auto wake = [process, alive] {
    if (alive->loop == nullptr || alive->waking) return;
    alive->waking = true;
    process->After(process->world()->random().Between(kShortestWake, kLongestWake), [alive] {
      alive->waking = false;
      if (alive->loop != nullptr) alive->loop->RunMailbox();
    });
  };
  auto mailbox =
      std::make_shared<Mailbox>(name, std::move(wake), std::numeric_limits<size_t>::max());
  return std::unique_ptr<Loop>(new Loop(std::move(process), std::move(alive), std::move(mailbox)));
}

Loop::Loop(std::shared_ptr<Process> process, std::shared_ptr<Alive> alive,
           std::shared_ptr<Mailbox> mailbox)
    : EventLoop(std::move(mailbox)), process_(std::move(process)), alive_(std::move(alive)) {
  alive_->loop = this;
}

void Loop::Run(Task task) { task(); }

void Loop::Stop() {
  if (alive_->loop == nullptr) return;
  alive_->loop = nullptr;
  mailbox()->Close();
  mailbox()->Take();
  deferred_.clear();
}

void Loop::Do(Task task) {
  process_->Do([alive = alive_, task = std::move(task)]() mutable {
    if (alive->loop != nullptr) task();
  });
}

void Loop::Defer(Task task) {
  deferred_.push_back(std::move(task));
  if (alive_->deferring) return;
  alive_->deferring = true;
  process_->AtEndOfTurn([alive = alive_] {
    alive->deferring = false;
    if (alive->loop != nullptr) alive->loop->RunDeferred();
  });
}

void Loop::RunDeferred() {
  std::vector<Task> tasks;
  tasks.swap(deferred_);
  for (Task& task : tasks) {
    if (!process_->alive()) return;
    task();
  }
}

void Loop::RunMailbox() {
  for (std::vector<Task> tasks = mailbox()->Take(); Task & task : tasks) {
    if (!process_->alive()) return;
    task();
    task = nullptr;
  }
}

uint64_t Loop::RunAfter(absl::Duration delay, Task task) {
  const uint64_t timer = next_timer_++;
  timers_.insert(timer);
  process_->After(delay, [alive = alive_, timer, task = std::move(task)]() mutable {
    if (alive->loop != nullptr && alive->loop->timers_.erase(timer) > 0) task();
  });
  return timer;
}

void Loop::Cancel(uint64_t timer) { timers_.erase(timer); }

absl::Status Loop::Watch(int, uint32_t, FdHandler*) {
  return absl::UnimplementedError("a simulated process has no descriptors");
}

}  // namespace addend::simulation
