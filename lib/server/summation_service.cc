#include "lib/server/summation_service.h"

#include <algorithm>
#include <utility>

#include "lib/base/version.h"
#include "lib/server/link_signals.h"
#include "lib/server/summation_member.h"

namespace addend {
namespace {
constexpr uint32_t kDefaultRounds = 100;
constexpr uint32_t kMaxRounds = 10000;
}  // namespace

grpc::Status SummationService::GetRollCall(grpc::ServerContext*, const v1::RollCallRequest* request,
                                           v1::RollCallResponse* response) {
  if (const grpc::Status asked = pace_.Next(); !asked.ok()) return asked;
  const uint32_t limit =
      request->limit() == 0 ? kDefaultRounds : std::min(request->limit(), kMaxRounds);
  for (const OpenRoundInfo& info : engine_->RollCall(JobId(request->job_id()), limit)) {
    v1::OpenRound* round = response->add_rounds();
    round->set_job_id(info.job.value());
    round->set_tensor_id(info.tensor.value());
    round->set_name(info.name);
    round->set_partition(info.partition);
    round->set_round(info.round.value());
    for (const NodeId node : info.pushed) round->add_pushed(node.value());
    for (const NodeId node : info.missing) round->add_missing(node.value());
    round->set_open_s(info.open_s);
    round->set_state(std::string(info.state));
    round->set_server_id(engine_->id().value());
  }
  const EngineStats stats = engine_->stats();
  *response->mutable_traffic() = ToProto(stats);
  response->set_memory_used_bytes(stats.memory_used_bytes);
  response->set_memory_peak_bytes(stats.memory_peak_bytes);
  response->set_version(std::string(Version()));
  return grpc::Status::OK;
}

grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* SummationService::Converse(
    grpc::CallbackServerContext* context) {
  return AnswerCall(context, engine_->incarnation(),
                    [engine = engine_, peer = context->peer()](
                        LinkRequest request, std::unique_ptr<rdma::Signals> rest) {
                      engine->AnswerRdma({.peer = peer,
                                          .terms = request.terms,
                                          .proof = std::move(request.proof),
                                          .offer = std::move(request.offer)},
                                         std::move(rest));
                    });
}

}  // namespace addend
