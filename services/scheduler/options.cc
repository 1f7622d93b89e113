// The options of addend-scheduler.
#include "services/scheduler/options.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

ABSL_FLAG(addend::HostPort, listen, (addend::HostPort{"", 7070}),
          "gRPC for members and addendctl, host:port");
ABSL_FLAG(addend::HostPort, http, (addend::HostPort{"", 7080}),
          "the status page, /api/status, /metrics, /healthz and /readyz, host:port");
ABSL_FLAG(addend::OptionalHostPort, health_listen,
          (addend::OptionalHostPort{addend::HostPort{"", 7081}}),
          "grpc.health.v1 in plain text for probes, host:port; 'off' for none");
ABSL_FLAG(
    std::string, store, "",
    "what survives a restart: sqlite:PATH; for several schedulers of which one leads "
    "etcd:HOST:PORT[,...][/PREFIX] or, in pods, kubernetes[:[NAMESPACE/]NAME]; or memory for none; "
    "default: sqlite:/var/lib/addend/scheduler.db");
ABSL_FLAG(std::string, etcd_ca, "",
          "PEM file with the authorities that sign etcd's certificates; with --etcd-cert and "
          "--etcd-key it makes the connection to etcd mutual TLS; default: plain text");
ABSL_FLAG(std::string, etcd_cert, "", "PEM file with the scheduler's certificate for etcd");
ABSL_FLAG(std::string, etcd_key, "", "PEM file with the private key of --etcd-cert");
ABSL_FLAG(std::string, etcd_user, "", "user of etcd; default: no login");
ABSL_FLAG(std::string, etcd_password_file, "", "a file with the password of --etcd-user");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(5),
          "a member that was not heard of for so long is lost; 100ms to 1h");
ABSL_FLAG(bool, react_to_stragglers, true,
          "give a CPU server for which rounds wait much longer than for the others less to sum");
ABSL_FLAG(bool, measure_network, true,
          "members measure round trips and bandwidths between them, a little and again and again, "
          "so that addendctl network knows which hosts are near each other");
ABSL_FLAG(std::string, network_file, "",
          "a file that tells the hosts' places in the network, a line each: address or hostname, "
          "and the place, outermost first, such as '10.0.0.7 zone-a/rack-3'; before what members "
          "tell by --network-place");
ABSL_FLAG(absl::Duration, token_lifetime, absl::Hours(1),
          "a node's token proves for so long to summation servers that it belongs to its job; half "
          "of it later there is a new one; 1s to 24h");
ABSL_FLAG(
    std::string, server_secret_file, "",
    "a file with a secret that CPU servers must have too: whoever is a server sees gradients; "
    "default: none is asked for");
ABSL_FLAG(std::string, port_file, "",
          "where to write the ports as JSON when serving (for ports chosen by the kernel)");

namespace addend {

absl::StatusOr<SchedulerOptions> ReadSchedulerOptions() {
  SchedulerOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http = absl::GetFlag(FLAGS_http);
  options.health_listen = absl::GetFlag(FLAGS_health_listen).address;
  options.store = absl::GetFlag(FLAGS_store);
  options.etcd = {.tls = {.cert = absl::GetFlag(FLAGS_etcd_cert),
                          .key = absl::GetFlag(FLAGS_etcd_key),
                          .ca = absl::GetFlag(FLAGS_etcd_ca),
                          .server_name = "",
                          .purpose = "the connection to etcd"},
                  .user = absl::GetFlag(FLAGS_etcd_user),
                  .password_file = absl::GetFlag(FLAGS_etcd_password_file)};
  const TlsFiles& tls = options.etcd.tls;
  if (tls.ca.empty() != tls.cert.empty() || tls.ca.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError(
        "--etcd-ca, --etcd-cert and --etcd-key belong together: give all three or none");
  }
  if (options.etcd.user.empty() != options.etcd.password_file.empty()) {
    return absl::InvalidArgumentError(
        "--etcd-user and --etcd-password-file belong together: give both or none");
  }
  options.lease = absl::GetFlag(FLAGS_lease);
  options.react_to_stragglers = absl::GetFlag(FLAGS_react_to_stragglers);
  options.measure_network = absl::GetFlag(FLAGS_measure_network);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  if (options.lease < absl::Milliseconds(100) || options.lease > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrFormat("--lease=%s must be between 100ms and 1h",
                                                      absl::FormatDuration(options.lease)));
  }
  options.token_lifetime = absl::GetFlag(FLAGS_token_lifetime);
  if (options.token_lifetime < absl::Seconds(1) || options.token_lifetime > absl::Hours(24)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--token-lifetime=%s must be between 1s and 24h",
                        absl::FormatDuration(options.token_lifetime)));
  }
  if (const std::string file = absl::GetFlag(FLAGS_server_secret_file); !file.empty()) {
    ADDEND_ASSIGN_OR_RETURN(const std::string secret, auth::ReadSecretFile(file));
    options.servers_digest = auth::DigestOf(auth::JoinProof(secret, auth::kOfServers));
  }
  if (const std::string file = absl::GetFlag(FLAGS_network_file); !file.empty()) {
    absl::StatusOr<NetworkPlaces> places = ReadNetworkFile(file);
    if (!places.ok()) {
      return absl::Status(places.status().code(),
                          absl::StrFormat("--network-file: %s", Message(places.status())));
    }
    options.network_places = *std::move(places);
  }
  return options;
}

}  // namespace addend
