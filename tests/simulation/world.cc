#include "tests/simulation/world.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace addend::simulation {

std::string Random::Key() {
  std::string key(32, '\0');
  for (char& c : key) c = static_cast<char>(Below(256));
  return key;
}

absl::Duration Random::Scale(absl::Duration first, absl::Duration last) {
  // Doublings, so that no logarithm of a library decides.
  int doublings = 0;
  while (first * (int64_t{1} << (doublings + 1)) <= last) ++doublings;
  const absl::Duration from = first * (int64_t{1} << Below(static_cast<uint64_t>(doublings) + 1));
  return Between(from, std::min(last, 2 * from));
}

void World::At(absl::Time when, Task task) {
  events_.emplace(std::make_pair(std::max(when, now_), scheduled_++), std::move(task));
}

bool World::Step(absl::Time end) {
  if (events_.empty() || events_.begin()->first.first > end || !violation_.empty()) return false;
  auto event = events_.extract(events_.begin());
  now_ = event.key().first;
  ++steps_;
  event.mapped()();
  return true;
}

void World::Trace(std::string_view who, std::string_view what) {
  std::string line =
      absl::StrFormat("%12.6f  %-10s %s", absl::ToDoubleSeconds(Elapsed()), who, what);
  for (const char c : line) trace_hash_ = (trace_hash_ ^ static_cast<uint8_t>(c)) * 1099511628211u;
  if (trace_) std::puts(line.c_str());
  last_lines_.push_back(std::move(line));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

void World::Violate(std::string what) {
  if (!violation_.empty()) return;
  Trace("oracle", absl::StrFormat("VIOLATION: %s", what));
  violation_ = std::move(what);
}

}  // namespace addend::simulation
