#include "lib/server/diagnostics_service.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "lib/server/caller_deadline.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostBytes = 64 << 20;
// A small amount comes in several pieces too, so that the caller can leave out the first.
constexpr uint64_t kChunkBytesLeast = 16 << 10;
constexpr uint64_t kChunkBytesMost = 1 << 20;
constexpr uint64_t kChunks = 16;
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
  const uint64_t wanted =
      request->bytes() == 0 ? kMostBytes : std::min(request->bytes(), kMostBytes);
  v1::MeasureBandwidthChunk chunk;
  chunk.set_data(
      std::string(std::clamp(wanted / kChunks, kChunkBytesLeast, kChunkBytesMost), '\0'));
  const Clock::time_point end = Clock::now() + kLongest;
  uint64_t sent = 0;
  while (sent < wanted && Clock::now() < end) {
    if (!writer->Write(chunk)) break;  // the caller has gone, or its deadline has passed
    sent += chunk.data().size();
  }
  measuring_ = false;
  return grpc::Status::OK;
}

}  // namespace addend
