// The agent's way to the scheduler.
#pragma once

#include <utility>

#include "lib/member/report.h"

namespace addend {

// Never blocks.
class SchedulerReports {
 public:
  virtual ~SchedulerReports() = default;
  virtual void Send(Report report) = 0;
  // The next heartbeat shall go out at once.
  virtual void BeatSoon() = 0;
};

// Passes reports on while a scheduler is known, and drops them before and after that time.
class SwitchedReports final : public SchedulerReports {
 public:
  // Null: drop them.
  void Set(SchedulerReports* reports) { reports_ = reports; }
  bool is_set() const { return reports_ != nullptr; }

  void Send(Report report) override {
    if (is_set()) reports_->Send(std::move(report));
  }
  void BeatSoon() override {
    if (is_set()) reports_->BeatSoon();
  }

 private:
  SchedulerReports* reports_ = nullptr;
};

}  // namespace addend
