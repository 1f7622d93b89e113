// Calls and watches of members without data, by gRPC's callbacks: a thread for each would take more
// memory than the scheduler.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Events of all members, for the thread that waits. Thread-safe.
class Board {
 public:
  void Fail(absl::Status why);
  // Something has changed that somebody may wait for.
  void Note();
  // DEADLINE_EXCEEDED says what is missing; or the failure of a member.
  absl::Status Await(absl::Duration patience, const std::function<bool()>& done,
                     const std::function<std::string()>& missing);
  // The same, whatever has failed, and as long as it takes.
  void AwaitEnd(const std::function<bool()>& done);

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// A watch, until Stop(), which waits for its end. Updates come as bytes: if each of thousands of
// nodes read the names of thousands of servers, that would take all of the machine.
class WatchStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Called by gRPC's threads, for each update in turn. `on_end` is not called after Stop().
  WatchStream(std::function<void(const std::string&)> on_update,
              std::function<void(absl::Status)> on_end)
      : on_update_(std::move(on_update)), on_end_(std::move(on_end)) {}

  // `method`: of the scheduler's service.
  void Start(const std::shared_ptr<grpc::Channel>& channel, const char* method,
             v1::MemberId member);
  void Stop();
  // Of all updates so far.
  uint64_t bytes() const { return bytes_; }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::function<void(const std::string&)> on_update_;
  const std::function<void(absl::Status)> on_end_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer update_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> bytes_{0};
  Mutex mu_;
  CondVar over_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// The parts of an update that a node without data reads.
struct BriefUpdate {
  uint32_t generation = 0;
  v1::JobState state = v1::FORMING;
  std::string reason;
  uint64_t change = 0;
  std::vector<uint32_t> tensors;  // the numbers of those with a plan
};
BriefUpdate ReadBriefly(const std::string& bytes);

// Calls a method of the scheduler with a request in slices, which calls may share. `done` gets the
// status, on a thread of gRPC's.
void CallWithSlices(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                    const std::vector<grpc::Slice>& request, absl::Duration deadline,
                    std::function<void(absl::Status)> done);

}  // namespace addend
