// Measures how fast bytes leave this machine, for `addendctl doctor` and for probes of other
// members.
#pragma once

#include <atomic>

#include "proto/addend/v1/diagnostics.grpc.pb.h"

namespace addend {

// Thread-safe; one measurement at a time.
class DiagnosticsService final : public v1::Diagnostics::Service {
 public:
  grpc::Status MeasureBandwidth(grpc::ServerContext* context,
                                const v1::MeasureBandwidthRequest* request,
                                grpc::ServerWriter<v1::MeasureBandwidthChunk>* writer) override;

 private:
  std::atomic<bool> measuring_{false};
};

}  // namespace addend
