// How a scheduler waits until it leads.
#include "services/scheduler/store/standby.h"

#include <chrono>
#include <future>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

constexpr absl::Duration kBetweenElections = absl::Milliseconds(200);
constexpr std::chrono::milliseconds kGiveUpInterval(50);
constexpr absl::Duration kBetweenLines = absl::Seconds(10);

}  // namespace

absl::Status StandBy(const Store::Leadership& leadership, const Candidate& candidate) {
  std::string leader;
  absl::Time next_line = absl::InfinitePast();
  while (true) {
    std::string now_leads;
    auto attempt =
        std::async(std::launch::async, [&] { return candidate.try_to_lead(&now_leads); });
    while (attempt.wait_for(kGiveUpInterval) == std::future_status::timeout) {
      if (leadership.give_up()) candidate.stop();
    }
    const auto leads = attempt.get();
    if (leads.ok() && *leads) return absl::OkStatus();
    if (!leads.ok() && !absl::IsUnavailable(leads.status())) return leads.status();
    if (now_leads != leader || SteadyNow() >= next_line) {
      leader = now_leads;
      next_line = SteadyNow() + kBetweenLines;
      if (leads.ok()) {
        if (leadership.on_standing_by) leadership.on_standing_by(leader);
        spdlog::info("standing by: {} leads", leader.empty() ? "nobody yet" : leader);
      } else {
        spdlog::warn("cannot lead yet: {}", Message(leads.status()));
      }
    }
    candidate.pause(kBetweenElections);
    if (leadership.give_up()) return absl::CancelledError("stopped while standing by");
  }
}

absl::Status LeadsNoMore(const absl::Status& why) {
  return WithKind(
      absl::AbortedError(absl::StrFormat(
          "this scheduler leads no more: %s; started again, it stands by", Message(why))),
      FailureKind::kTemporary);
}

absl::Status AnotherLeads() {
  return WithKind(
      absl::AbortedError("another scheduler leads now; started again, this one stands by"),
      FailureKind::kTemporary);
}

}  // namespace addend
