#include "lib/options/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  struct sigaction terminate = {};
  ::sigaction(SIGTERM, nullptr, &terminate);
  if (terminate.sa_handler != SIG_IGN) sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t ending = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &ending, &old_mask_);
  signals_ = UniqueFd(::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  wakeup_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ADDEND_CHECK(signals_.valid() && wakeup_.valid(), "a starting process has free descriptors");
}

std::optional<int> StopSignal::Wait(absl::Duration timeout) {
  if (taken_.has_value()) return taken_;
  const absl::Time deadline = SteadyNow() + timeout;
  pollfd fds[] = {{signals_.get(), POLLIN, 0}, {wakeup_.get(), POLLIN, 0}};
  while (true) {
    // Slices keep the conversion to poll's milliseconds in range; rounded up, so that the loop does
    // not spin at the end.
    const absl::Duration left =
        std::clamp(deadline - SteadyNow(), absl::ZeroDuration(), absl::Hours(1));
    const int ready =
        ::poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999))));
    if (ready > 0 && fds[0].revents != 0 && TakeSignal()) return taken_;
    // stays readable, as the reason stays set
    if (ready > 0 && fds[1].revents != 0) return std::nullopt;
    if (SteadyNow() >= deadline) return std::nullopt;
  }
}

bool StopSignal::TakeSignal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return false;
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  taken_ = static_cast<int>(info.ssi_signo);
  return true;
}

void StopSignal::WaitForSignal() {
  pollfd signal = {signals_.get(), POLLIN, 0};
  while (!taken_.has_value()) {
    if (::poll(&signal, 1, /*timeout=*/-1) > 0) TakeSignal();
  }
}

absl::Status StopSignal::WaitUntilStopped() {
  while (true) {
    if (Wait(absl::InfiniteDuration()).has_value()) return absl::OkStatus();
    if (auto reason = stop_requested()) return *reason;
  }
}

void StopSignal::RequestStop(absl::Status reason) {
  {
    MutexLock lock(&mu_);
    if (!reason_.has_value()) reason_ = std::move(reason);
  }
  const uint64_t one = 1;
  // An eventfd that is full is already readable, which is sufficient.
  [[maybe_unused]] const ssize_t written = ::write(wakeup_.get(), &one, sizeof(one));
}

void StopSignal::Resume() {
  uint64_t written = 0;
  [[maybe_unused]] const ssize_t read = ::read(wakeup_.get(), &written, sizeof(written));
  MutexLock lock(&mu_);
  reason_.reset();
}

std::optional<absl::Status> StopSignal::stop_requested() const {
  MutexLock lock(&mu_);
  return reason_;
}

}  // namespace addend
