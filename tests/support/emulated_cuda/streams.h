// The streams and events of the emulation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// A thread that works off a queue in order. Destroyed once the queue is empty.
struct CUstream_st {
 public:
  explicit CUstream_st(int device);
  ~CUstream_st();
  void Enqueue(std::function<void()> task);
  bool IsIdle();
  void Drain();

  const int device;

 private:
  void Work();

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mu_; the first is under way
  bool ending_ = false;                      // guarded by mu_
  std::thread thread_;
};

// A record of an event in a stream: a stream that waits for it keeps waiting for it, even if the
// event is recorded again later.
class Record {
 public:
  void Reach();
  bool IsReached();
  void Await();

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool reached_ = false;  // guarded by mu_
};

struct CUevent_st {
 public:
  explicit CUevent_st(int on_device) : device(on_device) {}
  std::shared_ptr<Record> Renew();
  std::shared_ptr<Record> Last();  // null: never recorded

  const int device;

 private:
  std::mutex mu_;
  std::shared_ptr<Record> last_;  // guarded by mu_; streams also keep it alive
};
