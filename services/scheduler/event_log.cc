// The recent events, for people.
#include "services/scheduler/event_log.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lib/base/utf8.h"

namespace addend {
namespace {

constexpr std::array<std::string_view, 4> kIncidents = {event_kind::kNonfinite, "audit_mismatch",
                                                        "rdma_fallback", "stall"};

}  // namespace

void EventLog::Add(absl::Time when, std::string_view kind, std::string_view job,
                   std::string_view text) {
  v1::Event event;
  event.set_number(++last_);
  event.set_unix_s(absl::ToDoubleSeconds(when - absl::UnixEpoch()));
  event.set_kind(std::string(kind));
  event.set_job(std::string(job));
  event.set_text(Shortened(text, kMaxTextBytes));
  ++counts_[event.kind()];
  events_.push_back(std::move(event));
  if (events_.size() > kLastEvents) events_.pop_front();
}

void EventLog::AddIncident(absl::Time when, const v1::Incident& incident, std::string_view job) {
  const bool known =
      std::find(kIncidents.begin(), kIncidents.end(), incident.kind()) != kIncidents.end();
  Add(when, known ? std::string_view(incident.kind()) : "incident", job, incident.text());
}

}  // namespace addend
