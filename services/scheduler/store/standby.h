// How a scheduler waits until it leads, whatever the store.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/store/store.h"

namespace addend {

// The calls of a store that Standby makes.
struct Candidate {
  // Whether this scheduler leads now; else `*leader` leads (empty: nobody). UNAVAILABLE is tried
  // again. On a thread of its own.
  std::function<absl::StatusOr<bool>(std::string* leader)> try_to_lead;
  std::function<void(absl::Duration)> pause;  // returns early after stop
  std::function<void()> stop;                 // makes a try that is under way end soon
};

// Tries again and again, and tells `leadership` whom it waits for. CANCELLED: leadership.give_up.
absl::Status StandBy(const Store::Leadership& leadership, const Candidate& candidate);

// The end of a leader, for Leadership::on_lost.
absl::Status LeadsNoMore(const absl::Status& why);
// The answer to a write of a leader that was deposed.
absl::Status AnotherLeads();

}  // namespace addend
