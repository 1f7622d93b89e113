#include "tools/addendctl/top_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/status.h"
#include "tools/addendctl/ask.h"
#include "tools/addendctl/top_view.h"

namespace addend {
namespace {

constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);
constexpr char kHome[] = "\x1b[H";
constexpr char kEraseLine[] = "\x1b[K";
constexpr char kEraseBelow[] = "\x1b[J";

double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

class Top {
 public:
  explicit Top(const TopQuestion& question) : question_(question) {}

  // Queries once. Returns an error only if no further query can succeed.
  absl::Status Ask() {
    // A stopped scheduler must not hold up Ctrl-C for long.
    const absl::Duration patience =
        std::min(question_.timeout, std::max(question_.interval, absl::Seconds(1)));
    auto status = AskStatus(question_.scheduler, question_.job, patience);
    if (!status.ok()) {
      if (absl::IsInvalidArgument(status.status())) return status.status();
      if (!away_since_) away_since_ = SteadyNow();
      away_ = Message(status.status());
      if (question_.once) return status.status();
      return absl::OkStatus();
    }
    away_since_.reset();
    before_ = std::exchange(now_, Sample{*std::move(status), SteadySeconds()});
    view_ = MakeTopView(before_ ? &*before_ : nullptr, *now_);
    return absl::OkStatus();
  }

  // Returns false if the output has no reader any more.
  bool Show() {
    TopHeader header{.scheduler = question_.scheduler,
                     .away = away_since_ ? away_ : "",
                     .unix_s = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())};
    if (away_since_) header.away_s = absl::ToDoubleSeconds(SteadyNow() - *away_since_);
    const TopView* view = view_ ? &*view_ : nullptr;
    if (question_.json) {
      Print(TopJson(header, view));
    } else if (winsize size{}; !question_.once && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
      // The last line stays free: a line feed in it would scroll.
      Redraw(FitScreen(TopText(header, view), size.ws_col, size.ws_row > 1 ? size.ws_row - 1u : 0));
    } else {
      Print(TopText(header, view) + (question_.once ? "" : "\n"));
    }
    return std::fflush(stdout) == 0;
  }

 private:
  static void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

  static void Redraw(const std::string& text) {
    std::string screen = kHome;
    for (const char c : text) {
      if (c == '\n') screen += kEraseLine;
      screen += c;
    }
    Print(screen + kEraseBelow);
  }

  const TopQuestion question_;
  std::optional<Sample> before_;
  std::optional<Sample> now_;
  std::optional<TopView> view_;
  std::optional<absl::Time> away_since_;
  std::string away_;
};

}  // namespace

absl::Status RunTop(const TopQuestion& question, StopSignal* stop) {
  if (question.interval < kShortestInterval || question.interval > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrFormat("--interval=%s must be from 100ms to 1h",
                                                      absl::FormatDuration(question.interval)));
  }
  Top top(question);
  ADDEND_RETURN_IF_ERROR(top.Ask());
  if (!question.once && !top.Show()) return absl::OkStatus();
  while (!stop->Wait(question.interval)) {
    ADDEND_RETURN_IF_ERROR(top.Ask());
    if (!top.Show() || question.once) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace addend
