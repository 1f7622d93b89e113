// The recent events, for people: the last events with their reasons, and how many there were of
// each kind. Pure: the caller brings the time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// The kinds of events, as v1::Event names them.
namespace event_kind {
inline constexpr std::string_view kJoined = "joined";
inline constexpr std::string_view kLeft = "left";
inline constexpr std::string_view kLost = "lost";
inline constexpr std::string_view kPlanned = "planned";
inline constexpr std::string_view kGeneration = "generation";
inline constexpr std::string_view kFailed = "failed";
inline constexpr std::string_view kRefused = "refused";
inline constexpr std::string_view kDrained = "drained";
inline constexpr std::string_view kNonfinite = "nonfinite";
}  // namespace event_kind

class EventLog {
 public:
  static constexpr size_t kLastEvents = 200;
  // A longer text ends in "...": most of it comes from members.
  static constexpr size_t kMaxTextBytes = 500;

  void Add(absl::Time when, std::string_view kind, std::string_view job, std::string_view text);
  // An incident that a member reports. Its kind becomes a label of a metric, so a kind that is not
  // known here counts as "incident".
  void AddIncident(absl::Time when, const v1::Incident& incident, std::string_view job);

  const std::deque<v1::Event>& events() const { return events_; }  // oldest first
  // By kind, since this process began.
  const std::map<std::string, uint64_t, std::less<>>& counts() const { return counts_; }

 private:
  std::deque<v1::Event> events_;
  std::map<std::string, uint64_t, std::less<>> counts_;
  uint64_t last_ = 0;
};

}  // namespace addend
