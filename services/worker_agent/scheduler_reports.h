// The agent's reports to the scheduler.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "lib/base/ids.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Never blocks.
class SchedulerReports {
 public:
  virtual ~SchedulerReports() = default;
  virtual void Declare(Generation generation, const v1::TensorDescriptor& tensor) = 0;
  virtual void Undeclare(Generation generation, const std::string& name) = 0;
  // `initialised` local ranks wait for the generation to begin.
  virtual void ReportTrainers(Generation generation, uint32_t initialised) = 0;
  virtual void ReportIdle(Generation generation) = 0;
  virtual void ReportFailure(Generation generation, const absl::Status& why) = 0;
  // A CPU server that this node cannot reach.
  virtual void ReportServerLost(Generation generation, ServerId server,
                                const absl::Status& why) = 0;
  // This node is connected to the next owners of a planned change, or follows all of them.
  virtual void AckChange(Generation generation, uint64_t change, bool following) = 0;
  // The next heartbeat shall go out at once.
  virtual void BeatSoon() = 0;
};

// Passes reports on while a scheduler is known, and drops them before and after that time.
class SwitchedReports final : public SchedulerReports {
 public:
  // Null: drop them.
  void Set(SchedulerReports* reports) { reports_ = reports; }
  bool is_set() const { return reports_ != nullptr; }

  void Declare(Generation generation, const v1::TensorDescriptor& tensor) override {
    if (is_set()) reports_->Declare(generation, tensor);
  }
  void Undeclare(Generation generation, const std::string& name) override {
    if (is_set()) reports_->Undeclare(generation, name);
  }
  void ReportTrainers(Generation generation, uint32_t initialised) override {
    if (is_set()) reports_->ReportTrainers(generation, initialised);
  }
  void ReportIdle(Generation generation) override {
    if (is_set()) reports_->ReportIdle(generation);
  }
  void ReportFailure(Generation generation, const absl::Status& why) override {
    if (is_set()) reports_->ReportFailure(generation, why);
  }
  void ReportServerLost(Generation generation, ServerId server, const absl::Status& why) override {
    if (is_set()) reports_->ReportServerLost(generation, server, why);
  }
  void AckChange(Generation generation, uint64_t change, bool following) override {
    if (is_set()) reports_->AckChange(generation, change, following);
  }
  void BeatSoon() override {
    if (is_set()) reports_->BeatSoon();
  }

 private:
  SchedulerReports* reports_ = nullptr;
};

}  // namespace addend
