// addend-scheduler: membership, job settings, tensor declarations and the plan.
#include <prometheus/registry.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/log_options.h"
#include "lib/options/options.h"
#include "lib/options/port_file.h"
#include "lib/options/privileges.h"
#include "lib/options/stop_signal.h"
#include "lib/rpc/local_address.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/server.h"
#include "lib/rpc/tls_options.h"
#include "lib/telemetry/http_server.h"
#include "lib/telemetry/metrics.h"
#include "services/scheduler/options.h"
#include "services/scheduler/scheduler_service.h"
#include "services/scheduler/status_page.h"
#include "services/scheduler/store/etcd_client.h"
#include "services/scheduler/store/store.h"

namespace addend {
namespace {

absl::Status Serve() {
  DropPrivileges();
  StopSignal stop;
  ADDEND_ASSIGN_OR_RETURN(const SchedulerOptions options, ReadSchedulerOptions());
  ADDEND_RETURN_IF_ERROR(StartLogging({.process = "scheduler"}));
  ADDEND_ASSIGN_OR_RETURN(const auto tls, StartTls(PlainText::kIfAskedFor));
  EtcdAccess etcd{.user = options.etcd.user, .password_file = options.etcd.password_file};
  if (!options.etcd.tls.ca.empty()) {
    ADDEND_ASSIGN_OR_RETURN(etcd.identity, TlsIdentity::Load(options.etcd.tls));
  }
  ADDEND_ASSIGN_OR_RETURN(auto store, OpenStore(options.store, etcd));

  // A scheduler that stands by is alive but not ready, and does not listen for members: they go on
  // to the next address. If it cannot listen, that has to show before it is needed.
  ADDEND_ASSIGN_OR_RETURN(const auto reserved, ReservedAddress::Take(options.listen));
  prometheus::Registry registry;
  StatusPage page;
  std::atomic<bool> leads{false};
  prometheus::Gauge& leader = AddGauge(&registry, "addend_scheduler_leader",
                                       "1 while this scheduler leads, 0 while it "
                                       "stands by.");
  ADDEND_ASSIGN_OR_RETURN(
      const auto http,
      HttpServer::Start(
          options.http.host, options.http.port, &registry,
          [&leads] { return leads ? absl::OkStatus() : absl::UnavailableError("standing by"); }, {},
          page.Routes()));
  std::unique_ptr<HealthServer> health;
  if (options.health_listen) {
    ADDEND_ASSIGN_OR_RETURN(health, HealthServer::Start(*options.health_listen));
  }
  const uint16_t health_port = health ? health->port() : 0;
  spdlog::info("scheduler serves HTTP on port {} and health checks on port {}", http->port(),
               health_port);
  const auto stop_with = [&stop](absl::Status why) { stop.RequestStop(std::move(why)); };
  const absl::Status lead =
      store->Lead({.name = absl::StrFormat("%s (process %d, start %x)", Hostname(), ::getpid(),
                                           NewIncarnation().value()),
                   .ttl = options.lease,
                   .give_up = [&stop] { return stop.Wait(absl::ZeroDuration()).has_value(); },
                   .on_standing_by = [&page](const std::string& leader) { page.StandBy(leader); },
                   .on_lost = stop_with});
  if (absl::IsCancelled(lead)) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(lead);

  ADDEND_ASSIGN_OR_RETURN(
      const auto service,
      SchedulerService::Create({.lease = options.lease,
                                .react_to_stragglers = options.react_to_stragglers,
                                .measure_network = options.measure_network,
                                .network_places = options.network_places,
                                .token_lifetime = options.token_lifetime,
                                .servers_digest = options.servers_digest,
                                .store = std::move(store),
                                .registry = &registry,
                                .on_fatal = stop_with}));
  ADDEND_ASSIGN_OR_RETURN(const auto rpc, RpcServer::Start({.listen = options.listen,
                                                            .max_request_bytes = kMaxRequestBytes,
                                                            .max_answer_bytes = kMaxUpdateBytes},
                                                           {service.get()}));
  page.Show([&service] { return service->Status(); }, [&service] { return service->Network(); });
  const absl::Cleanup hide = [&page] { page.StandBy(""); };
  leads = true;
  leader.Set(1);
  rpc->SetReady(true);
  if (health) health->SetReady(true);
  spdlog::info("scheduler serves gRPC on port {}", rpc->port());
  ADDEND_RETURN_IF_ERROR(WritePortFile(
      options.port_file, {{"grpc", rpc->port()}, {"http", http->port()}, {"health", health_port}}));
  const absl::Status why = stop.WaitUntilStopped();
  leads = false;
  if (health) health->SetReady(false);
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
