// The tokens by which servers know a job's nodes (docs/security.md). Pure, but for the clock that
// is given.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/job.h"

namespace addend {

class Tokens {
 public:
  // `clock`: other machines compare it with their clocks, so it may jump.
  Tokens(absl::Duration lifetime, std::function<absl::Time()> clock);

  // The clock's time, in seconds since 1970.
  double NowUnixS() const;
  // The node has no token of the generation, or has had it for half its lifetime.
  bool IsDue(absl::Time now, const Job& job, const Node& node) const;
  // Notes in `node` that it has the token.
  v1::NodeToken New(absl::Time now, const Job& job, Node* node) const;

 private:
  const absl::Duration lifetime_;
  const std::function<absl::Time()> clock_;
};

}  // namespace addend
