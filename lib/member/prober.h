// Measures the ways to other members that the scheduler names. Internal to lib/member.
#pragma once

#include <grpcpp/client_context.h>

#include <thread>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "lib/base/mutex.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend::internal {

// Thread-safe. Measures the targets in turn, on a thread of its own that starts with the first
// target.
class Prober {
 public:
  using Targets = google::protobuf::RepeatedPtrField<v1::ProbeTarget>;
  using Probes = google::protobuf::RepeatedPtrField<v1::Probe>;

  Prober() = default;
  // Ends a measurement that is under way, within a tenth of a second.
  ~Prober() { Stop(); }
  void Stop();

  // Measures these instead of all that wait. No effect without targets.
  void Measure(const Targets& targets);
  // Moves the measurements since the last call to `probes`.
  void Take(Probes* probes);

 private:
  void Run();
  bool Next(v1::ProbeTarget* target);
  v1::Probe MeasureOne(const v1::ProbeTarget& target);
  double BandwidthTo(const v1::ProbeTarget& target);
  bool stopping();

  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::ProbeTarget> targets_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::Probe> probes_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace addend::internal
