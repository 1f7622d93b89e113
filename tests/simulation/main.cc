// addend-simulate: whole clusters of the real code in one thread, each a function of its seed.
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/simulation/swarm.h"

ABSL_FLAG(uint64_t, seeds, 1, "number of seeds");
ABSL_FLAG(uint64_t, start, 1, "the first seed");
ABSL_FLAG(double, seconds, 0, "begin no seed after so many seconds; 0: no limit");
ABSL_FLAG(uint64_t, stride, 1, "distance of the seeds");
ABSL_FLAG(bool, trace, false, "print every event as it happens");
ABSL_FLAG(bool, plan, false, "print the plan of every seed");
ABSL_FLAG(bool, hash, false, "print a hash of every seed's events");
ABSL_FLAG(bool, power_loss, false, "the store may lose its last writes, against its promise");
ABSL_FLAG(uint32_t, nodes, 0, "of the only job of every seed; 0: as the seed has it");
ABSL_FLAG(uint32_t, rack_nodes, 0, "nodes of a rack; 0: as the seed has it");
ABSL_FLAG(bool, minimise, true, "look for the fewest faults that lead to the first violation");

namespace addend::simulation {
namespace {

constexpr unsigned kLongestRunS = 120;  // of most seeds it is a part of a second

// Ends the process when a run does not end, or its code has crashed, and names the seed.
void Watchdog(uint64_t seed) {
  static char text[80];
  std::snprintf(text, sizeof(text), "seed %llu: crashes, or does not end\n",
                static_cast<unsigned long long>(seed));
  const auto handler = [](int number) {
    if (write(STDOUT_FILENO, text, std::strlen(text)) < 0) _exit(70);
    std::signal(number, SIG_DFL);
    std::raise(number);
  };
  for (const int number : {SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(number, handler);
  alarm(kLongestRunS);
}

int Main() {
  const bool trace = absl::GetFlag(FLAGS_trace);
  uint64_t events = 0, faults = 0, results = 0, relayed = 0, violations = 0;
  uint64_t seeds = absl::GetFlag(FLAGS_seeds);
  const absl::Time begin = absl::Now();
  const absl::Duration limit = absl::Seconds(absl::GetFlag(FLAGS_seconds));
  for (uint64_t i = 0; i < seeds; ++i) {
    if (limit > absl::ZeroDuration() && absl::Now() - begin >= limit) {
      seeds = i;
      break;
    }
    const uint64_t seed = absl::GetFlag(FLAGS_start) + i * absl::GetFlag(FLAGS_stride);
    const Schedule schedule = Draw(seed, {.power_loss = absl::GetFlag(FLAGS_power_loss),
                                          .nodes = absl::GetFlag(FLAGS_nodes),
                                          .rack_nodes = absl::GetFlag(FLAGS_rack_nodes)});
    if (absl::GetFlag(FLAGS_plan) || trace) std::puts(Describe(schedule).c_str());
    Watchdog(seed);
    const Outcome outcome = Play(schedule, trace);
    events += outcome.events;
    faults += outcome.faults;
    results += outcome.results;
    relayed += outcome.relayed;
    if (absl::GetFlag(FLAGS_hash)) {
      std::printf("seed %llu: %016llx\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(outcome.trace_hash));
    }
    if (outcome.violation.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                outcome.violation.c_str());
    if (violations++ == 0 && absl::GetFlag(FLAGS_minimise)) {
      const Schedule least = Minimise(schedule);
      std::puts("the fewest faults that lead to a violation:");
      std::puts(Describe(least).c_str());
      for (const std::string& line : Play(least, false).last_lines) std::puts(line.c_str());
    }
    std::fflush(stdout);
  }
  std::printf(
      "%llu faults, %llu results checked, %llu sums of racks\n"
      "%llu seeds, %llu events, %llu violations\n",
      static_cast<unsigned long long>(faults), static_cast<unsigned long long>(results),
      static_cast<unsigned long long>(relayed), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(events), static_cast<unsigned long long>(violations));
  return violations == 0 ? 0 : 1;
}

}  // namespace
}  // namespace addend::simulation

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("addend-simulate --seeds=N --start=S [--trace]");
  absl::ParseCommandLine(argc, argv);
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>()));
  return addend::simulation::Main();
}
