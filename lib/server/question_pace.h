// Limits the rate of queries about jobs (roll-calls, traces): each query goes to every shard's
// thread, which also sums for all jobs. Thread-safe.
#pragma once

#include <grpcpp/support/status.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "lib/base/mutex.h"

namespace addend {

// People and addendctl ask a few times a minute; a script that asks every server of a large job
// asks each of them once.
inline constexpr double kQuestionsPerSecond = 20;
inline constexpr double kQuestionsAtOnce = 40;

class QuestionPace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // RESOURCE_EXHAUSTED if the limit for the last seconds is exceeded by all callers together.
  grpc::Status Next(Time now = std::chrono::steady_clock::now()) {
    const MutexLock lock(&mu_);
    const double passed = std::chrono::duration<double>(now - last_).count();
    last_ = std::max(last_, now);
    left_ = std::min(kQuestionsAtOnce, left_ + std::max(passed, 0.0) * kQuestionsPerSecond);
    if (left_ < 1) return TooMany();
    --left_;
    return grpc::Status::OK;
  }

 private:
  static grpc::Status TooMany() {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrFormat("this process answers at most %.0f questions about jobs per second: "
                            "ask again in a second",
                            kQuestionsPerSecond)};
  }

  Mutex mu_;
  Time last_ ABSL_GUARDED_BY(mu_);
  double left_ ABSL_GUARDED_BY(mu_) = kQuestionsAtOnce;
};

}  // namespace addend
