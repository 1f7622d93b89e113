// The world of a simulation: virtual time, randomness, and a queue of events, in one thread. Every
// run is a pure function of its seed.
//
// Events of the same moment run in the order in which they were scheduled. The world's time is the
// true time; a process has a clock of its own (process.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace addend::simulation {

using Task = absl::AnyInvocable<void()>;

// Draws from a seed. The distributions are our own: those of the standard library differ between
// its implementations.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Bits() { return engine_(); }
  // The 32 bytes of a member's or a job's key.
  std::string Key();
  // Of 0 to n - 1; n > 0.
  uint64_t Below(uint64_t n) { return engine_() % n; }
  uint64_t Between(uint64_t first, uint64_t last) { return first + Below(last - first + 1); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Of [0, 1).
  double Fraction() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  absl::Duration Between(absl::Duration first, absl::Duration last) {
    const int64_t ns = absl::ToInt64Nanoseconds(last - first);
    return first + absl::Nanoseconds(static_cast<int64_t>(Below(static_cast<uint64_t>(ns) + 1)));
  }
  // A duration whose order of magnitude is drawn.
  absl::Duration Scale(absl::Duration first, absl::Duration last);

 private:
  std::mt19937_64 engine_;
};

class World {
 public:
  // `trace`: print every event as it happens.
  World(uint64_t seed, bool trace) : random_(seed), trace_(trace) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  absl::Time Now() const { return now_; }
  absl::Duration Elapsed() const { return now_ - begin_; }
  Random& random() { return random_; }
  void At(absl::Time when, Task task);
  void After(absl::Duration delay, Task task) { At(now_ + delay, std::move(task)); }
  // Runs the next event; false if there is none until `end`.
  bool Step(absl::Time end);
  uint64_t steps() const { return steps_; }

  // Notes an event of a process, or between processes.
  void Trace(std::string_view who, std::string_view what);
  // The last lines, oldest first.
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  // Of all lines so far.
  uint64_t trace_hash() const { return trace_hash_; }

  // The first violation counts; the run ends.
  void Violate(std::string what);
  const std::string& violation() const { return violation_; }

 private:
  static constexpr size_t kLastLines = 400;

  Random random_;
  const bool trace_;
  const absl::Time begin_ = absl::FromUnixSeconds(1'800'000'000);  // any moment
  absl::Time now_ = begin_;
  uint64_t scheduled_ = 0;
  uint64_t steps_ = 0;
  std::map<std::pair<absl::Time, uint64_t>, Task> events_;
  std::deque<std::string> last_lines_;
  uint64_t trace_hash_ = 14695981039346656037u;
  std::string violation_;
};

}  // namespace addend::simulation
