#include "lib/member/outage.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/rpc/status.h"

namespace addend::internal {
namespace {

constexpr absl::Duration kBetweenOutageLines = absl::Seconds(10);
constexpr absl::Duration kLongestWait = absl::Milliseconds(300);

}  // namespace

void Outage::OnFailure(const absl::Status& status, absl::Time now) {
  MutexLock lock(&mu_);
  if (!since_.has_value()) {
    since_ = last_line_ = now;
    spdlog::warn("lost the scheduler {} ({}); trying again", scheduler_, ShortReason(status));
  } else if (now - last_line_ >= kBetweenOutageLines) {
    last_line_ = now;
    spdlog::warn("scheduler {} has not answered for {:.0f} s ({}); trying again", scheduler_,
                 absl::ToDoubleSeconds(now - *since_), ShortReason(status));
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
