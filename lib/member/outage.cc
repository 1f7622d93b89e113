#include "lib/member/outage.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/rpc/client.h"

namespace addend::internal {
namespace {

constexpr absl::Duration kBetweenOutageLines = absl::Seconds(10);
constexpr absl::Duration kLongestWait = absl::Milliseconds(300);

}  // namespace

void Outage::OnFailure(const absl::Status& status, absl::Time now) {
  absl::Duration silent;
  {
    MutexLock lock(&mu_);
    if (since_.has_value() && now - last_line_ < kBetweenOutageLines) return;
    last_line_ = now;
    if (!since_.has_value()) since_ = now;
    silent = now - *since_;
  }
  const std::string why = WhyUnreachable(scheduler_, status);
  if (silent == absl::ZeroDuration()) {
    spdlog::warn("lost the scheduler {} ({}); trying again", scheduler_, why);
  } else {
    spdlog::warn("scheduler {} has not answered for {:.0f} s ({}); trying again", scheduler_,
                 absl::ToDoubleSeconds(silent), why);
  }
}

void Outage::OnAnswer(absl::Time now) {
  MutexLock lock(&mu_);
  if (!since_.has_value()) return;
  spdlog::info("scheduler {} answers again after {:.1f} s", scheduler_,
               absl::ToDoubleSeconds(now - *since_));
  since_.reset();
}

absl::Duration Backoff::Next() {
  const absl::Duration wait = next_;
  next_ = std::min(next_ * 2, kLongestWait);
  return wait;
}

}  // namespace addend::internal
