// The agent's gRPC service: a snapshot of its state.
#pragma once

#include <string>

#include "lib/base/version.h"
#include "proto/addend/v1/agent.grpc.pb.h"
#include "services/worker_agent/agent.h"

namespace addend {

class AgentService final : public v1::Agent::Service {
 public:
  // `agent` must outlive the service.
  explicit AgentService(Agent* agent) : agent_(agent) {}
  grpc::Status GetAgent(grpc::ServerContext*, const v1::GetAgentRequest*,
                        v1::GetAgentResponse* response) override {
    *response = agent_->Snapshot();
    response->set_version(std::string(Version()));
    return grpc::Status::OK;
  }

 private:
  addend::Agent* const agent_;
};

}  // namespace addend
