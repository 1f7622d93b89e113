// Logs that the scheduler does not answer, without flooding the log. Internal to lib/member.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"

namespace addend::internal {

// Logs the start of an outage, its duration every 10 s, and its end. From any thread.
class Outage {
 public:
  explicit Outage(std::string scheduler) : scheduler_(std::move(scheduler)) {}

  void OnFailure(const absl::Status& status, absl::Time now);
  void OnAnswer(absl::Time now);

 private:
  const std::string scheduler_;
  Mutex mu_;
  std::optional<absl::Time> since_ ABSL_GUARDED_BY(mu_);  // nullopt: the scheduler answers
  absl::Time last_line_ ABSL_GUARDED_BY(mu_);
};

// Waiting times between attempts: from 50 ms, doubling, to 300 ms.
class Backoff {
 public:
  absl::Duration Next();
  void Reset() { next_ = kFirst; }

 private:
  static constexpr absl::Duration kFirst = absl::Milliseconds(50);
  absl::Duration next_ = kFirst;
};

}  // namespace addend::internal
