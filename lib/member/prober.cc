#include "lib/member/prober.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/member/round_trip.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/diagnostics.grpc.pb.h"

namespace addend::internal {
namespace {

constexpr int kTimes = 16;
constexpr size_t kTargetsMost = 8;
constexpr size_t kProbesMost = 32;  // that nobody has taken
constexpr uint64_t kBandwidthBytesMost = 16 << 20;
constexpr absl::Duration kBandwidthTimeout = absl::Seconds(2);

}  // namespace

void Prober::Stop() {
  {
    const MutexLock lock(&mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Prober::Measure(const Targets& targets) {
  if (targets.empty()) return;
  const MutexLock lock(&mu_);
  if (stopping_) return;
  const auto count = std::min(static_cast<size_t>(targets.size()), kTargetsMost);
  targets_.assign(targets.begin(), targets.begin() + static_cast<ptrdiff_t>(count));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.NotifyAll();
}

void Prober::Take(Probes* probes) {
  const MutexLock lock(&mu_);
  for (v1::Probe& probe : probes_) *probes->Add() = std::move(probe);
  probes_.clear();
}

bool Prober::stopping() {
  const MutexLock lock(&mu_);
  return stopping_;
}

bool Prober::Next(v1::ProbeTarget* target) {
  const MutexLock lock(&mu_);
  while (!stopping_ && targets_.empty()) changed_.Wait(&mu_);
  if (stopping_) return false;
  *target = std::move(targets_.front());
  targets_.erase(targets_.begin());
  return true;
}

void Prober::Run() {
  v1::ProbeTarget target;
  while (Next(&target)) {
    v1::Probe probe = MeasureOne(target);
    const MutexLock lock(&mu_);
    if (probes_.size() == kProbesMost) probes_.erase(probes_.begin());
    probes_.push_back(std::move(probe));
  }
}

v1::Probe Prober::MeasureOne(const v1::ProbeTarget& target) {
  v1::Probe probe;
  probe.set_address(target.address());
  const auto latency = LeastRoundTrip(target.address(), kTimes, [this] { return stopping(); });
  if (!latency.ok()) return probe;
  probe.set_latency_s(absl::ToDoubleSeconds(*latency));
  if (target.bandwidth_bytes() > 0) probe.set_bandwidth_bps(BandwidthTo(target));
  return probe;
}

// From the first piece to the last, so that it does not count how long the call takes to begin. 0:
// it could not be measured.
double Prober::BandwidthTo(const v1::ProbeTarget& target) {
  const auto stub = v1::Diagnostics::NewStub(Dial(target.address()));
  grpc::ClientContext context;
  SetDeadline(&context, kBandwidthTimeout);
  {
    const MutexLock lock(&mu_);
    if (stopping_) return 0;
    call_ = &context;
  }
  v1::MeasureBandwidthRequest request;
  request.set_bytes(std::min(target.bandwidth_bytes(), kBandwidthBytesMost));
  const auto stream = stub->MeasureBandwidth(&context, request);
  v1::MeasureBandwidthChunk chunk;
  absl::Time first = absl::InfiniteFuture();
  uint64_t bytes = 0;
  while (stream->Read(&chunk)) {
    if (first == absl::InfiniteFuture()) {
      first = SteadyNow();
    } else {
      bytes += chunk.data().size();
    }
  }
  const absl::Time last = SteadyNow();
  const bool complete = stream->Finish().ok();
  {
    const MutexLock lock(&mu_);
    call_ = nullptr;
  }
  if (!complete || bytes == 0 || last <= first) return 0;
  return static_cast<double>(bytes) * 8 / absl::ToDoubleSeconds(last - first);
}

}  // namespace addend::internal
