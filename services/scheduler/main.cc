// addend-scheduler: membership, job settings, tensor declarations and the plan.
#include <prometheus/registry.h>

#include <memory>
#include <utility>

#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/options.h"
#include "lib/options/port_file.h"
#include "lib/options/stop_signal.h"
#include "lib/rpc/server.h"
#include "lib/telemetry/http_server.h"
#include "services/scheduler/options.h"
#include "services/scheduler/scheduler_service.h"
#include "services/scheduler/store/store.h"

namespace addend {
namespace {

absl::Status Serve() {
  StopSignal stop;
  ADDEND_ASSIGN_OR_RETURN(const SchedulerOptions options, ReadSchedulerOptions());
  ADDEND_RETURN_IF_ERROR(InitLogging("scheduler", options.log_level));
  ADDEND_ASSIGN_OR_RETURN(auto store, OpenStore(options.store));

  prometheus::Registry registry;
  ADDEND_ASSIGN_OR_RETURN(const auto service,
                          SchedulerService::Create({.lease = options.lease,
                                                    .store = std::move(store),
                                                    .registry = &registry,
                                                    .on_fatal = [&stop](absl::Status why) {
                                                      stop.RequestStop(std::move(why));
                                                    }}));
  ADDEND_ASSIGN_OR_RETURN(
      const auto rpc, RpcServer::Start({options.listen, options.health_listen}, {service.get()}));
  // By the time anybody can ask, the store has been read: a running scheduler is ready.
  ADDEND_ASSIGN_OR_RETURN(const auto http,
                          HttpServer::Start(options.http.host, options.http.port, &registry,
                                            [] { return absl::OkStatus(); }));
  rpc->SetReady(true);
  spdlog::info("scheduler serves gRPC on port {} and HTTP on port {}", rpc->port(), http->port());
  ADDEND_RETURN_IF_ERROR(WritePortFile(
      options.port_file,
      {{"grpc", rpc->port()}, {"http", http->port()}, {"health", rpc->health_port()}}));
  const absl::Status why = stop.WaitUntilStopped();
  rpc->SetReady(false);
  service->Shutdown();
  return why;
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  return addend::RunProgram(
      {"addend-scheduler",
       "The scheduler: knows the members, agrees tensors between nodes, and plans who sums what."},
      argc, argv, [] { return addend::Serve(); });
}
