#include "lib/server/diagnostics_service.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "lib/server/caller_deadline.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostBytes = 64 << 20;
constexpr size_t kChunkBytes = 1 << 20;
constexpr std::chrono::seconds kLongest(1);
constexpr std::chrono::seconds kLatestDeadline(10);

}  // namespace

grpc::Status DiagnosticsService::MeasureBandwidth(
    grpc::ServerContext* context, const v1::MeasureBandwidthRequest* request,
    grpc::ServerWriter<v1::MeasureBandwidthChunk>* writer) {
  if (auto status = CheckDeadline(*context, "MeasureBandwidth", kLatestDeadline); !status.ok()) {
    return status;
  }
  if (measuring_.exchange(true)) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            "another bandwidth measurement is running on this server: ask again in a second"};
  }
  v1::MeasureBandwidthChunk chunk;
  chunk.set_data(std::string(kChunkBytes, '\0'));
  const uint64_t wanted =
      request->bytes() == 0 ? kMostBytes : std::min(request->bytes(), kMostBytes);
  const Clock::time_point end = Clock::now() + kLongest;
  uint64_t sent = 0;
  while (sent < wanted && Clock::now() < end) {
    if (!writer->Write(chunk)) break;  // the caller has gone, or its deadline has passed
    sent += kChunkBytes;
  }
  measuring_ = false;
  return grpc::Status::OK;
}

}  // namespace addend
