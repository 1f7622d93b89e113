// The gRPC service that returns the recorded events of a job's rounds. Summation servers and agents
// run it; agents add the lives of their partitions.
#pragma once

#include <atomic>
#include <functional>

#include "lib/server/question_pace.h"
#include "lib/summation/engine.h"
#include "proto/addend/v1/trace.grpc.pb.h"

namespace addend {

class TraceService final : public v1::Trace::Service {
 public:
  // Appends further records of the job's last rounds.
  using MoreFn = std::function<void(JobId job, uint64_t rounds, v1::TraceChunk* chunk)>;

  // `engine` must outlive the service.
  explicit TraceService(const Engine* engine, MoreFn more = nullptr)
      : engine_(engine), more_(std::move(more)) {}
  grpc::Status GetClock(grpc::ServerContext* context, const v1::GetClockRequest* request,
                        v1::GetClockResponse* response) override;
  // Requires a deadline of at most a minute; few callers may read at the same time.
  grpc::Status GetTrace(grpc::ServerContext* context, const v1::GetTraceRequest* request,
                        grpc::ServerWriter<v1::TraceChunk>* writer) override;

 private:
  const Engine* const engine_;
  const MoreFn more_;
  QuestionPace pace_;
  std::atomic<int> reading_ = 0;  // running calls of GetTrace
};

}  // namespace addend
