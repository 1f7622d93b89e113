#include "bench/training.h"

#include <chrono>
#include <thread>
#include <vector>

#include "bench/contents.h"
#include "bench/report.h"
#include "bench/session.h"
#include "bench/workload.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Sleeps for the compute times, and makes up for sleeping too long earlier.
class SimulatedGpu {
 public:
  void Compute(Seconds time) {
    const auto now = Clock::now();
    // After an idle time it begins now.
    if (busy_until_ + kSlack < now) busy_until_ = now;
    busy_until_ += std::chrono::duration_cast<Clock::duration>(time);
    std::this_thread::sleep_until(busy_until_);
  }

 private:
  static constexpr std::chrono::milliseconds kSlack{1};
  Clock::time_point busy_until_ = Clock::now();
};

absl::Status Iterate(WorkloadTensors* tensors, const BenchOptions& options, SimulatedGpu* gpu) {
  const Seconds share{options.compute_s / static_cast<double>(tensors->size())};
  for (size_t i = 0; i < tensors->size(); ++i) {
    ADDEND_RETURN_IF_ERROR(tensors->Wait(i));
    gpu->Compute(share / 3);
  }
  for (size_t i = tensors->size(); i-- > 0;) {
    gpu->Compute(share * 2 / 3);
    // The next forward pass needs the first tensors first.
    ADDEND_RETURN_IF_ERROR(tensors->Push(i, options.priority ? -static_cast<int32_t>(i) : 0));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTraining(const BenchOptions& options) {
  ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Open(options.socket));
  ADDEND_ASSIGN_OR_RETURN(const Contents contents,
                          Contents::Read(options.contents, session->rank()));
  std::vector<Measurement> lines;
  for (const Workload& workload : options.workloads) {
    Measurement line{
        .name = workload.name, .bytes = workload.bytes(), .tensor_bytes = workload.tensor_bytes};
    ADDEND_ASSIGN_OR_RETURN(
        WorkloadTensors tensors,
        WorkloadTensors::Make(session.get(), workload, contents, options.in_place));
    SimulatedGpu gpu;
    for (uint32_t i = 0; i < options.warm_up; ++i) {
      ADDEND_RETURN_IF_ERROR(Iterate(&tensors, options, &gpu));
    }
    auto start = Clock::now();
    for (uint32_t i = 0; i < options.iterations; ++i) {
      ADDEND_RETURN_IF_ERROR(Iterate(&tensors, options, &gpu));
      line.seconds.push_back(Seconds(Clock::now() - start).count());
      start = Clock::now();
    }
    for (size_t i = 0; i < tensors.size(); ++i) ADDEND_RETURN_IF_ERROR(tensors.Wait(i));
    line.checksum = tensors.Checksum();
    ADDEND_RETURN_IF_ERROR(tensors.Drop());
    ADDEND_RETURN_IF_ERROR(session->Agree("bench/seconds", line.seconds.data(), options.iterations,
                                          ADDEND_FLOAT64, ADDEND_MAX));
    lines.push_back(std::move(line));
  }
  if (session->rank() == 0) Print(lines, session->size(), options.json);
  return absl::OkStatus();
}

}  // namespace addend
