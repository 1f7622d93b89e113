// A node without a network: an agent, its colocated summation server, and a scheduler that accepts
// all of the agent's reports. Runs one generation of the job after the other.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "lib/summation/engine.h"
#include "services/worker_agent/agent.h"

namespace addend::fuzz {

class OneNode final : private SchedulerReports {
 public:
  static constexpr uint32_t kLocalSize = 2;
  // The scheduler refuses larger tensors.
  static constexpr uint64_t kTensorBytesMost = 256 << 10;

  explicit OneNode(const std::string& socket);
  ~OneNode() override;

  // Drops the present generation. The new generation is ready when all trainers have initialised.
  void BeginGeneration();
  // Returns when the agent has handled all messages sent to it, with all consequences in the server
  // and back.
  void Settle();
  Agent* agent() { return agent_.get(); }
  Engine* engine() { return engine_.get(); }

 private:
  // On the agent's thread.
  void Declare(Generation generation, const v1::TensorDescriptor& tensor) override;
  void Undeclare(Generation generation, const std::string& name) override;
  void ReportTrainers(Generation generation, uint32_t initialised) override;
  void ReportIdle(Generation) override {}
  void ReportFailure(Generation generation, const absl::Status& why) override;
  void ReportServerLost(Generation, ServerId, const absl::Status&) override {}
  void AckChange(Generation, uint64_t, bool) override {}
  void BeatSoon() override {}
  v1::NodeUpdate Update(v1::JobState state) const;

  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Engine> engine_;
  std::atomic<uint32_t> generation_{0};
  uint32_t last_tensor_ = 0;
  std::map<std::string, uint32_t> tensors_;
};

}  // namespace addend::fuzz
