// The gRPC service of a summation engine: the roll-call, and the signalling streams of links over
// RDMA.
#pragma once

#include "lib/server/question_pace.h"
#include "lib/summation/engine.h"
#include "proto/addend/v1/summation.grpc.pb.h"

namespace addend {

class SummationService final
    : public v1::Summation::WithCallbackMethod_Converse<v1::Summation::Service> {
 public:
  // `engine` must outlive the service.
  explicit SummationService(Engine* engine) : engine_(engine) {}
  grpc::Status GetRollCall(grpc::ServerContext* context, const v1::RollCallRequest* request,
                           v1::RollCallResponse* response) override;
  grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* Converse(
      grpc::CallbackServerContext* context) override;

 private:
  Engine* const engine_;
  QuestionPace pace_;
};

}  // namespace addend
