#include "services/scheduler/event_log.h"

#include <algorithm>
#include <array>
#include <utility>

namespace addend {
namespace {

constexpr std::array<std::string_view, 4> kIncidents = {event_kind::kNonfinite, "audit_mismatch",
                                                        "rdma_fallback", "stall"};

// Cut between two characters, since a protobuf string has to stay UTF-8.
std::string Shortened(std::string text) {
  if (text.size() <= EventLog::kMaxTextBytes) return text;
  size_t end = EventLog::kMaxTextBytes - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) >> 6) == 2) --end;
  text.resize(end);
  return text + "...";
}

}  // namespace

void EventLog::Add(absl::Time when, std::string_view kind, std::string_view job, std::string text) {
  v1::Event event;
  event.set_number(++last_);
  event.set_unix_s(absl::ToDoubleSeconds(when - absl::UnixEpoch()));
  event.set_kind(std::string(kind));
  event.set_job(std::string(job));
  event.set_text(std::move(text));
  ++counts_[event.kind()];
  events_.push_back(std::move(event));
  if (events_.size() > kKept) events_.pop_front();
}

void EventLog::AddIncident(absl::Time when, const v1::Incident& incident, std::string_view job) {
  const bool known =
      std::find(kIncidents.begin(), kIncidents.end(), incident.kind()) != kIncidents.end();
  Add(when, known ? std::string_view(incident.kind()) : "incident", job,
      Shortened(incident.text()));
}

}  // namespace addend
