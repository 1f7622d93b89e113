#include "lib/server/trace_service.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "lib/server/caller_deadline.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// Records per chunk: about 3 MB.
constexpr int kRecordsPerChunk = 1 << 15;
// Each call occupies a thread and a copy of the job's last events until the caller has read them.
constexpr int kTracesAtOnce = 8;
constexpr std::chrono::seconds kTraceDeadline(60);

// CLOCK_MONOTONIC is common to all processes of a boot and a time namespace.
std::string NameOfClock() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/time", name.data(), name.size());
  return boot + " " + std::string(name.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
}

void ToProto(const SumEvent& event, v1::SumEvent* proto) {
  proto->set_kind(static_cast<v1::SumEvent::Kind>(event.kind));
  proto->set_tensor_id(event.partition.tensor().value());
  proto->set_partition(event.partition.index());
  proto->set_round(event.round.value());
  proto->set_node(event.node.value());
  proto->set_bytes(event.bytes);
  proto->set_busy_ns(event.busy_ns);
  proto->set_begin(static_cast<uint64_t>(event.begin));
  proto->set_end(static_cast<uint64_t>(event.end));
}

}  // namespace

grpc::Status TraceService::GetClock(grpc::ServerContext*, const v1::GetClockRequest*,
                                    v1::GetClockResponse* response) {
  response->set_clock(NameOfClock());
  response->set_now_ns(TraceNow());
  return grpc::Status::OK;
}

grpc::Status TraceService::GetTrace(grpc::ServerContext* context,
                                    const v1::GetTraceRequest* request,
                                    grpc::ServerWriter<v1::TraceChunk>* writer) {
  if (auto status = CheckDeadline(*context, "GetTrace", kTraceDeadline); !status.ok()) {
    return status;
  }
  if (const grpc::Status asked = pace_.Next(); !asked.ok()) return asked;
  const absl::Cleanup over = [this] { --reading_; };
  if (++reading_ > kTracesAtOnce) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrFormat(
                "%d callers are already reading traces from this process: ask again in a second",
                kTracesAtOnce)};
  }
  const JobId job(request->job_id());
  v1::TraceChunk chunk;
  for (const auto& [id, name] : engine_->TensorNames(job)) {
    v1::TensorName* const tensor = chunk.add_tensors();
    tensor->set_tensor_id(id.value());
    tensor->set_name(name);
  }
  if (more_) more_(job, request->rounds(), &chunk);
  writer->Write(chunk);
  chunk.Clear();
  for (const SumEvent& event : engine_->Trace(job, request->rounds())) {
    ToProto(event, chunk.add_events());
    if (chunk.events_size() < kRecordsPerChunk) continue;
    if (!writer->Write(chunk)) return grpc::Status::OK;
    chunk.Clear();
  }
  if (chunk.events_size() > 0) writer->Write(chunk);
  return grpc::Status::OK;
}

}  // namespace addend
