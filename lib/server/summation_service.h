// The gRPC service of a summation engine: the roll-call.
#pragma once

#include "lib/summation/engine.h"
#include "proto/addend/v1/summation.grpc.pb.h"

namespace addend {

class SummationService final : public v1::Summation::Service {
 public:
  // `engine` must outlive the service.
  explicit SummationService(const Engine* engine) : engine_(engine) {}
  grpc::Status GetRollCall(grpc::ServerContext* context, const v1::RollCallRequest* request,
                           v1::RollCallResponse* response) override;

 private:
  const Engine* const engine_;
};

}  // namespace addend
