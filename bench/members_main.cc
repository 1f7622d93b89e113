// Measures a scheduler with the control planes of thousands of members (bench/members starts it).
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "bench/fake_fleet.h"
#include "bench/process_cpu.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/options/host_port.h"
#include "lib/options/options.h"
#include "lib/plan/models.h"

ABSL_FLAG(addend::HostPort, scheduler, (addend::HostPort{}), "The scheduler, host:port.");
ABSL_FLAG(int32_t, pid, 0, "The scheduler's process.");
ABSL_FLAG(int32_t, nodes, 256, "Nodes of the job, each with a colocated server.");
ABSL_FLAG(int32_t, cpu_servers, 0, "CPU servers.");
ABSL_FLAG(std::string, model, "bert-large",
          "The tensors: a model's parameters; or COUNTxBYTES, as in 54x25000000.");
ABSL_FLAG(absl::Duration, beat, absl::Seconds(10), "How long members only send heartbeats.");
ABSL_FLAG(absl::Duration, patience, absl::Minutes(5), "How long a step may take.");

namespace addend {
namespace {

constexpr char kSummary[] =
    "measures a scheduler with many members that have no data\n"
    "  addend-bench-members --scheduler=HOST:PORT --pid=PID   a line of JSON for each step";

absl::StatusOr<std::vector<uint64_t>> ReadTensors(const std::string& text) {
  std::vector<uint64_t> elements;
  if (const auto model = ModelTensors(text); model.ok()) {
    for (const ModelTensor& tensor : *model) elements.push_back(tensor.elements);
    return elements;
  }
  unsigned count = 0;
  unsigned long long bytes = 0;
  if (std::sscanf(text.c_str(), "%ux%llu", &count, &bytes) != 2 || count == 0 || count > 10'000 ||
      bytes < 4) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--model=%s is no model of addend-bench and no COUNTxBYTES, as in 54x25000000", text));
  }
  elements.assign(count, bytes / 4);
  return elements;
}

double ResidentMb(int pid) {
  std::ifstream file(absl::StrFormat("/proc/%d/statm", pid));
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096e-6;
}

class Steps {
 public:
  Steps(const FakeFleet* fleet, int pid) : fleet_(*fleet), pid_(pid) {}

  template <typename Step>
  absl::Status Run(const char* name, const Step& step) const {
    const double cpu = ProcessCpuSeconds(pid_).value_or(0);
    const uint64_t to_nodes = fleet_.node_update_bytes();
    const uint64_t to_servers = fleet_.server_update_bytes();
    const absl::Time start = SteadyNow();
    ADDEND_RETURN_IF_ERROR(step());
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
    std::printf(
        R"({"step": "%s", "seconds": %.3f, "cpu_s": %.3f, "members": %zu, "to_nodes": %llu, )"
        R"("to_servers": %llu, "resident_mb": %.1f})"
        "\n",
        name, seconds, ProcessCpuSeconds(pid_).value_or(0) - cpu, fleet_.members(),
        static_cast<unsigned long long>(fleet_.node_update_bytes() - to_nodes),
        static_cast<unsigned long long>(fleet_.server_update_bytes() - to_servers),
        ResidentMb(pid_));
    std::fflush(stdout);
    return absl::OkStatus();
  }

 private:
  const FakeFleet& fleet_;
  const int pid_;
};

absl::Status Measure() {
  // Else each of many threads grows a heap of its own, a page at a time.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TOP_PAD, 64 << 20);
  // A descriptor for each connection.
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  ADDEND_ASSIGN_OR_RETURN(std::vector<uint64_t> tensors, ReadTensors(absl::GetFlag(FLAGS_model)));
  const auto count = [](int32_t flag) { return static_cast<uint32_t>(std::max(flag, 0)); };
  FakeFleet fleet({.scheduler = absl::GetFlag(FLAGS_scheduler).ToString(),
                   .nodes = count(absl::GetFlag(FLAGS_nodes)),
                   .cpu_servers = count(absl::GetFlag(FLAGS_cpu_servers)),
                   .tensor_elements = std::move(tensors)});
  const absl::Duration patience = absl::GetFlag(FLAGS_patience);
  const Steps steps(&fleet, absl::GetFlag(FLAGS_pid));
  ADDEND_RETURN_IF_ERROR(steps.Run("join", [&] { return fleet.Join(patience); }));
  ADDEND_RETURN_IF_ERROR(steps.Run("begin", [&] { return fleet.Begin(patience); }));
  ADDEND_RETURN_IF_ERROR(steps.Run("plan", [&] { return fleet.Declare(patience); }));
  if (absl::GetFlag(FLAGS_cpu_servers) > 0) {
    ADDEND_RETURN_IF_ERROR(steps.Run("death", [&] { return fleet.KillServer(patience); }));
  }
  return steps.Run("beat", [&] { return fleet.Rest(absl::GetFlag(FLAGS_beat)); });
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  return addend::RunProgram({"addend-bench-members", addend::kSummary}, argc, argv,
                            [] { return addend::Measure(); });
}
