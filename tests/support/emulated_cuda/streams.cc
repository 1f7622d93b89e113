#include "tests/support/emulated_cuda/streams.h"

CUstream_st::CUstream_st(int on_device) : device(on_device), thread_([this] { Work(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mu_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void CUstream_st::Enqueue(std::function<void()> task) {
  const std::lock_guard lock(mu_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

bool CUstream_st::IsIdle() {
  const std::lock_guard lock(mu_);
  return tasks_.empty();
}

void CUstream_st::Drain() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void CUstream_st::Work() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    // References to a deque's first element stay valid.
    std::function<void()>& task = tasks_.front();
    lock.unlock();
    task();
    lock.lock();
    tasks_.pop_front();
    changed_.notify_all();
  }
}

void Record::Reach() {
  const std::lock_guard lock(mu_);
  reached_ = true;
  changed_.notify_all();
}

bool Record::IsReached() {
  const std::lock_guard lock(mu_);
  return reached_;
}

void Record::Await() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return reached_; });
}

std::shared_ptr<Record> CUevent_st::Renew() {
  const std::lock_guard lock(mu_);
  last_ = std::make_shared<Record>();
  return last_;
}

std::shared_ptr<Record> CUevent_st::Last() {
  const std::lock_guard lock(mu_);
  return last_;
}
