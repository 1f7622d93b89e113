// How long a summation server was at work for this node: contributions were on their way to it, or
// it had all of them and their results were awaited. Belongs to the agent's core thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"

namespace addend {

class ServerWork {
 public:
  using Clock = std::function<absl::Time()>;

  explicit ServerWork(Clock clock) : clock_(std::move(clock)) {}

  // A contribution is pushed.
  void Await(PartitionId partition) {
    if (awaited_.empty()) ++services_;
    awaited_.insert(partition);
    Count();
  }
  // The result is there, or not expected from this server any more.
  void Arrived(PartitionId partition) {
    if (awaited_.erase(partition) > 0) Count();
  }
  // Some of the contributions wait in the send queue.
  void SetQueued(bool queued) {
    queued_ = queued;
    Count();
  }
  // The connection is lost, over which sending took so long.
  void OnConnectionLost(absl::Duration sending) {
    former_sending_ += sending;
    awaited_.clear();
    Count();
  }

  // `sending`: the time that sending took over the present connection.
  absl::Duration served(absl::Duration sending) const {
    const absl::Time now = clock_();
    return former_sending_ + sending + summing_ + (now - std::min(now, summing_since_));
  }
  // How often the work began.
  uint64_t services() const { return services_; }
  // The time that sending took over all connections, since the last call.
  absl::Duration TakeSending(absl::Duration sending) {
    const absl::Duration now = former_sending_ + sending;
    return now - std::exchange(taken_, now);
  }

 private:
  // The server's own time begins when this node has sent everything.
  void Count() {
    const bool summing = !awaited_.empty() && !queued_;
    if (summing == (summing_since_ != absl::InfiniteFuture())) return;
    const absl::Time now = clock_();
    if (!summing) summing_ += now - summing_since_;
    summing_since_ = summing ? now : absl::InfiniteFuture();
  }

  const Clock clock_;
  absl::flat_hash_set<PartitionId> awaited_;  // pushed, without a result so far
  bool queued_ = false;
  absl::Time summing_since_ = absl::InfiniteFuture();
  absl::Duration summing_;
  absl::Duration former_sending_;
  absl::Duration taken_;
  uint64_t services_ = 0;
};

}  // namespace addend
