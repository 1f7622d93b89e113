// The answer about the network, which is drawn from the map at most every few seconds for all
// callers together: with thousands of hosts that takes seconds, during which the map stays free. It
// takes a twentieth of the time at most.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/mutex.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/network_map.h"

namespace addend {

// Thread-safe.
class NetworkCache {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(2);

  // `facts` is called if the answer has to be drawn anew, by this thread, without a lock of the
  // cache. UNAVAILABLE: another thread draws the first answer.
  absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>> Get(
      absl::FunctionRef<NetworkFacts()> facts);

 private:
  Mutex mu_;
  std::shared_ptr<const v1::GetNetworkResponse> answer_ ABSL_GUARDED_BY(mu_);
  absl::Time fresh_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool drawing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend
