// The gRPC service that gives what a process has noted of a job's rounds. The same in summation
// servers and agents, which add the ways of their partitions.
#pragma once

#include <functional>

#include "lib/summation/engine.h"
#include "proto/addend/v1/trace.grpc.pb.h"

namespace addend {

class TraceService final : public v1::Trace::Service {
 public:
  // Appends what else is known of the job's last rounds.
  using MoreFn = std::function<void(JobId job, uint64_t rounds, v1::TraceChunk* chunk)>;

  // `engine` must outlive the service.
  explicit TraceService(const Engine* engine, MoreFn more = nullptr)
      : engine_(engine), more_(std::move(more)) {}
  grpc::Status GetClock(grpc::ServerContext* context, const v1::GetClockRequest* request,
                        v1::GetClockResponse* response) override;
  grpc::Status GetTrace(grpc::ServerContext* context, const v1::GetTraceRequest* request,
                        grpc::ServerWriter<v1::TraceChunk>* writer) override;

 private:
  const Engine* const engine_;
  const MoreFn more_;
};

}  // namespace addend
