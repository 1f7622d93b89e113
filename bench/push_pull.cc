#include "bench/push_pull.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/contents.h"
#include "bench/process_cpu.h"
#include "bench/report.h"
#include "bench/session.h"
#include "bench/workload.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

// The sum of this process's and its agent's processor time; nullopt if the agent's is unknown.
class CpuMeter {
 public:
  explicit CpuMeter(std::optional<pid_t> agent) : agent_(agent), start_(Read()) {}

  std::optional<double> Elapsed() const {
    const std::optional<double> now = Read();
    if (!now || !start_) return std::nullopt;
    return *now - *start_;
  }

 private:
  std::optional<double> Read() const {
    if (!agent_) return std::nullopt;
    const std::optional<double> own = ProcessCpuSeconds(getpid());
    const std::optional<double> agent = ProcessCpuSeconds(*agent_);
    if (!own || !agent) return std::nullopt;
    return *own + *agent;
  }

  const std::optional<pid_t> agent_;
  const std::optional<double> start_;
};

absl::StatusOr<double> TimeRound(Session* session, WorkloadTensors* tensors) {
  ADDEND_RETURN_IF_ERROR(session->Barrier());
  const auto start = std::chrono::steady_clock::now();
  ADDEND_RETURN_IF_ERROR(tensors->PushPull());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns INTERNAL unless every rank has the same checksum: Addend's promise, which the measurement
// also checks.
absl::Status CheckSameBits(Session* session, const Measurement& line) {
  int64_t least = static_cast<int64_t>(line.checksum);
  int64_t largest = least;
  ADDEND_RETURN_IF_ERROR(session->Agree("bench/least", &least, 1, ADDEND_INT64, ADDEND_MIN));
  ADDEND_RETURN_IF_ERROR(session->Agree("bench/largest", &largest, 1, ADDEND_INT64, ADDEND_MAX));
  if (least == largest) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat(
      "the results of %s differ between ranks; this is a bug of Addend, please report it "
      "with the logs of all agents",
      line.name));
}

absl::StatusOr<Measurement> Measure(Session* session, const Workload& workload,
                                    const Contents& contents, const BenchOptions& options,
                                    std::optional<pid_t> agent) {
  Measurement line{.name = workload.name, .bytes = workload.bytes()};
  ADDEND_ASSIGN_OR_RETURN(WorkloadTensors tensors,
                          WorkloadTensors::Make(session, workload, contents, options.in_place));
  for (uint32_t i = 0; i < options.warm_up; ++i) {
    ADDEND_RETURN_IF_ERROR(TimeRound(session, &tensors).status());
  }
  const CpuMeter cpu(agent);
  for (uint32_t i = 0; i < options.iterations; ++i) {
    ADDEND_ASSIGN_OR_RETURN(const double seconds, TimeRound(session, &tensors));
    line.seconds.push_back(seconds);
  }
  if (const std::optional<double> seconds = cpu.Elapsed()) {
    line.cpu_s_per_GB = *seconds / (static_cast<double>(line.bytes) * options.iterations / 1e9);
  }
  line.checksum = tensors.Checksum();
  ADDEND_RETURN_IF_ERROR(tensors.Drop());
  ADDEND_RETURN_IF_ERROR(session->Agree("bench/seconds", line.seconds.data(), options.iterations,
                                        ADDEND_FLOAT64, ADDEND_MAX));
  ADDEND_RETURN_IF_ERROR(CheckSameBits(session, line));
  return line;
}

}  // namespace

absl::Status RunPushPull(const BenchOptions& options) {
  ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(options.socket));
  // Only an explicit path identifies this rank's agent; without it the agent's part is unknown.
  const std::optional<pid_t> agent =
      options.socket.empty() ? std::nullopt : ServerOfSocket(options.socket);
  ADDEND_ASSIGN_OR_RETURN(const Contents contents,
                          Contents::Read(options.contents, session->rank()));
  std::vector<Measurement> lines;
  for (const Workload& workload : options.workloads) {
    ADDEND_ASSIGN_OR_RETURN(Measurement line,
                            Measure(session.get(), workload, contents, options, agent));
    lines.push_back(std::move(line));
  }
  if (session->rank() == 0) Print(lines, session->size(), options.json);
  return absl::OkStatus();
}

}  // namespace addend
