// The parts of a heartbeat that the scheduler uses.
#include "services/scheduler/heartbeats.h"

#include <algorithm>
#include <string>

#include "lib/base/utf8.h"

namespace addend {
namespace {

// Of a heartbeat.
constexpr int kMaxIncidents = 100;
constexpr double kOldestIncidentS = 86'400;

// Of each node, until the first value that is not finite counts as known.
constexpr int kAwaitedHeartbeats = 2;

// Of a member's activity, and of its links, in a status.
constexpr size_t kShownBytes = 1000;

}  // namespace

v1::HeartbeatRequest ShownOf(const v1::HeartbeatRequest& beat) {
  v1::HeartbeatRequest shown;
  shown.set_generation(beat.generation());
  shown.set_memory_used_bytes(beat.memory_used_bytes());
  shown.set_activity(Shortened(beat.activity(), kShownBytes));
  shown.set_links(Shortened(beat.links(), kShownBytes));
  *shown.mutable_traffic() = beat.traffic();
  *shown.mutable_rounds() = beat.rounds();
  return shown;
}

v1::HeartbeatRequest ShownOf(const v1::ColocatedBeat& beat) {
  v1::HeartbeatRequest shown;
  shown.set_memory_used_bytes(beat.memory_used_bytes());
  shown.set_activity(Shortened(beat.activity(), kShownBytes));
  *shown.mutable_traffic() = beat.traffic();
  return shown;
}

void TakeIncidents(const v1::HeartbeatRequest& beat, Job* job, Changes* changes) {
  const int taken = std::min(beat.incidents_size(), kMaxIncidents);
  for (int i = 0; i < taken; ++i) {
    const v1::Incident& incident = beat.incidents(i);
    // An age that is not a number counts as 0.
    const double age_s = incident.age_s() > 0 ? std::min(incident.age_s(), kOldestIncidentS) : 0;
    const absl::Time when = changes->now() - absl::Seconds(age_s);
    const std::string text = changes->NoteIncident(when, incident, job == nullptr ? "" : job->name);
    const bool current = job != nullptr && Generation(beat.generation()) == job->current.number;
    if (!current || incident.kind() != event_kind::kNonfinite) continue;
    FirstNonfinite& first = job->current.nonfinite;
    if (first.text.empty()) {
      for (const auto& [rank, node] : job->nodes) first.awaited[rank] = kAwaitedHeartbeats;
    }
    first.Take(incident.follows(), when, text);
  }
}

}  // namespace addend
