// A watch stream of a member: a bounded queue of updates, which gRPC's threads write in turn. It
// has no thread of its own, so that a scheduler may have ten thousand streams.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lib/base/mutex.h"

namespace addend {

// The service's side of a stream, of either kind. From any thread, except where a method says more.
class Pumpable {
 public:
  virtual ~Pumpable() = default;
  // Starts the next write, or the end, if no write is under way. gRPC may answer on the caller's
  // stack, so the caller must hold no lock.
  virtual void Pump() = 0;
  // Drops the queued updates; the member sees `status`. Takes effect with the next Pump.
  virtual void End(grpc::Status status) = 0;
};

// Owned by itself until gRPC has done with it (OnDone), and by every caller that still wants to
// push.
template <typename Update>
class UpdateStream : public grpc::ServerWriteReactor<Update>, public Pumpable {
 public:
  // A member that does not read this many updates is cut off; it gets the whole state when it
  // watches again.
  static constexpr size_t kMaxQueued = 1024;

  // `on_done` runs once, on a thread of gRPC's: the stream has ended, for whatever reason.
  // It must not wait for anything that a call of gRPC's may hold.
  static std::shared_ptr<UpdateStream> Create(std::function<void()> on_done) {
    std::shared_ptr<UpdateStream> stream(new UpdateStream(std::move(on_done)));
    stream->self_ = stream;
    return stream;
  }

  // Takes effect with the next Pump.
  void Push(std::shared_ptr<const Update> update) {
    MutexLock lock(&mu_);
    if (end_) return;
    if (queue_.size() == kMaxQueued) {
      queue_.clear();
      end_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "the member does not read its updates; it has to watch anew");
      return;
    }
    queue_.push_back(std::move(update));
  }

  void End(grpc::Status status) override {
    MutexLock lock(&mu_);
    if (end_) return;
    queue_.clear();
    end_ = std::move(status);
  }

  void Pump() override {
    const Update* next = nullptr;
    std::optional<grpc::Status> end;
    {
      MutexLock lock(&mu_);
      if (writing_ || finished_) return;
      if (end_) {
        finished_ = true;
        end = end_;
      } else if (!queue_.empty()) {
        writing_ = true;
        current_ = std::move(queue_.front());
        queue_.pop_front();
        next = current_.get();
      }
    }
    // Neither flag is taken back before gRPC has answered, so `this` lives and nobody else is here.
    if (end) {
      this->Finish(*std::move(end));
    } else if (next != nullptr) {
      this->StartWrite(next);
    }
  }

 private:
  explicit UpdateStream(std::function<void()> on_done) : on_done_(std::move(on_done)) {}

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      current_.reset();
      if (!ok && !end_) end_ = grpc::Status::CANCELLED;
    }
    Pump();
  }
  void OnCancel() override {
    End(grpc::Status::CANCELLED);
    Pump();
  }
  void OnDone() override {
    on_done_();
    self_.reset();  // the last line: it may delete this
  }

  const std::function<void()> on_done_;
  std::shared_ptr<UpdateStream> self_;

  Mutex mu_;
  std::deque<std::shared_ptr<const Update>> queue_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Update> current_ ABSL_GUARDED_BY(mu_);  // lent to gRPC
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
