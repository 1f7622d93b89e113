#include "services/scheduler/network_cache.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "services/scheduler/network_view.h"

namespace addend {

absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>> NetworkCache::Get(
    absl::FunctionRef<NetworkFacts()> facts) {
  {
    const MutexLock lock(&mu_);
    if (answer_ != nullptr && (drawing_ || SteadyNow() < fresh_until_)) return answer_;
    if (drawing_) {
      return absl::UnavailableError("the map of the network is being drawn: ask again");
    }
    drawing_ = true;
  }
  const absl::Time began = SteadyNow();
  auto answer = std::make_shared<const v1::GetNetworkResponse>(ViewOf(facts()));
  const MutexLock lock(&mu_);
  drawing_ = false;
  fresh_until_ = SteadyNow() + std::max(kInterval, 20 * (SteadyNow() - began));
  return answer_ = std::move(answer);
}

}  // namespace addend
