// addend-summation: runs a summation server on a CPU machine.
//
// Order matters. At the start: data port and gRPC listen before the server registers, since nodes
// may connect as soon as the scheduler names it; the process reports itself ready only when it is
// registered. At the end: partitions move to other servers first (Drain), then the server leaves,
// then the links close.
#include <prometheus/registry.h>

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/log_options.h"
#include "lib/options/options.h"
#include "lib/options/port_file.h"
#include "lib/options/privileges.h"
#include "lib/options/stop_signal.h"
#include "lib/reduce/reduce.h"
#include "lib/rpc/server.h"
#include "lib/rpc/tls_options.h"
#include "lib/server/diagnostics_service.h"
#include "lib/server/engine_metrics.h"
#include "lib/server/machine_options.h"
#include "lib/server/summation_member.h"
#include "lib/server/summation_service.h"
#include "lib/server/trace_service.h"
#include "lib/telemetry/http_server.h"
#include "services/summation/options.h"

namespace addend {
namespace {

// Moves the partitions of this server to others before it ends. If that takes longer than
// `timeout`, the nodes recover the partitions.
void Drain(SummationMember* member, absl::Duration timeout) {
  spdlog::info("draining, for at most {}; a second signal ends it at once",
               absl::FormatDuration(timeout));
  if (member->Drain(timeout)) {
    spdlog::info("drained: no job needs this server any more");
  } else {
    spdlog::warn("not drained within {}: the jobs recover what this server summed",
                 absl::FormatDuration(timeout));
  }
}

absl::Status Serve() {
  DropPrivileges();
  StopSignal stop;
  ADDEND_ASSIGN_OR_RETURN(const SummationOptions options, ReadSummationOptions());
  ADDEND_RETURN_IF_ERROR(StartLogging({.process = "summation"}));
  ADDEND_ASSIGN_OR_RETURN(const auto tls, StartTls(PlainText::kIfAskedFor));

  ADDEND_ASSIGN_OR_RETURN(const RdmaHere rdma, OpenRdma(options.machine.transport));
  RdmaOptions rdma_options = options.machine.transport.rdma;
  rdma_options.domain_per_owner = true;  // jobs of teams that need not trust each other
  const std::unique_ptr<Machine> machine =
      MakeMachine(options.machine.most_spin, options.machine.transport.shared_memory);
  ADDEND_ASSIGN_OR_RETURN(
      const auto engine,
      Engine::Create({.shards = options.shards,
                      .memory_limit_bytes = options.memory_limit_bytes,
                      .job_memory_limit_bytes = options.job_memory_limit_bytes,
                      .incarnation = NewIncarnation(),
                      .send_limits = SendLimitsFor(options.machine.bandwidth_bps),
                      .encoding = options.machine.transport.encoding,
                      .network = nullptr,
                      .rdma_devices = rdma.devices,
                      .rdma_options = rdma_options,
                      .external_slots = nullptr,
                      .machine = machine.get()}));
  ADDEND_ASSIGN_OR_RETURN(const uint16_t data_port,
                          engine->Listen({options.data_listen.host, options.data_listen.port}));
  SummationService service(engine.get());
  TraceService trace(engine.get());
  DiagnosticsService diagnostics;
  ADDEND_ASSIGN_OR_RETURN(const auto rpc, RpcServer::Start({options.listen, options.health_listen},
                                                           {&service, &trace, &diagnostics}));
  prometheus::Registry registry;
  const EngineMetrics metrics(engine.get());
  std::atomic<bool> joined{false};
  const auto ready = [&joined] {
    return joined.load() ? absl::OkStatus()
                         : absl::UnavailableError("not yet registered with the scheduler");
  };
  ADDEND_ASSIGN_OR_RETURN(const auto http, HttpServer::Start(options.http.host, options.http.port,
                                                             &registry, ready, {&metrics}));

  const MemberOptions member_options{
      .scheduler = options.machine.scheduler.ToString(),
      .connect_timeout = options.machine.connect_timeout,
      .give_up = [&stop] { return stop.Wait(absl::ZeroDuration()).has_value(); },
      .on_fatal = [&stop](absl::Status why) { stop.RequestStop(std::move(why)); },
      .on_drained = [&stop] { stop.RequestStop(absl::OkStatus()); }};
  v1::RegisterServerRequest registration = ServerRegistration(
      options.machine, rdma.devices, rpc->port(), data_port, options.memory_limit_bytes);
  registration.set_join_proof(options.join_proof);
  registration.set_job_memory_limit_bytes(options.job_memory_limit_bytes);
  auto member = SummationMember::Join(member_options, std::move(registration), engine.get());
  if (absl::IsCancelled(member.status())) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(member.status());
  joined = true;
  rpc->SetReady(true);
  spdlog::info("summation server {} serves data on {}:{} with {} shard{} ({})",
               (*member)->server_id(), options.machine.data_host, data_port, options.shards,
               options.shards == 1 ? "" : "s", TargetName());
  ADDEND_RETURN_IF_ERROR(WritePortFile(options.port_file, {{"grpc", rpc->port()},
                                                           {"http", http->port()},
                                                           {"health", rpc->health_port()},
                                                           {"data", data_port}}));
  const absl::Status why = stop.WaitUntilStopped();
  joined = false;
  rpc->SetReady(false);
  if (why.ok()) Drain(member->get(), options.drain_timeout);
  (*member)->Leave();
  engine->HangUp();
  return why;
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  return addend::RunProgram(
      {"addend-summation", "A summation server: sums partitions for training jobs."}, argc, argv,
      [] { return addend::Serve(); });
}
