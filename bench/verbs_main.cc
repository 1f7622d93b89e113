#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "bench/verbs_channel.h"
#include "bench/verbs_session.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/options/host_port.h"
#include "lib/options/options.h"

ABSL_FLAG(std::string, role, "both",
          "client, server, or both: a client and a server of its own on this machine.");
ABSL_FLAG(addend::HostPort, listen, (addend::HostPort{"", 18520}),
          "server: where the client connects to over TCP, to agree on the rest.");
ABSL_FLAG(addend::HostPort, peer, (addend::HostPort{}), "client: the server's --listen.");
ABSL_FLAG(std::string, device, "", "The RDMA device; the first one if it is empty.");
ABSL_FLAG(std::string, server_device, "", "both: the server's; the same if it is empty.");
ABSL_FLAG(int32_t, gid_index, -1,
          "Of the device's GID table; -1 is RoCE v2 over IPv4, if the device has that.");
ABSL_FLAG(addend::ByteSize, bytes, (addend::ByteSize{uint64_t{1} << 20}), "Of a payload.");
ABSL_FLAG(uint32_t, entries, 1,
          "Scatter-gather entries that make up a payload at the sender; the receiver's memory is "
          "one piece.");
ABSL_FLAG(uint32_t, depth, 16, "Payloads that the NIC has at a time.");
ABSL_FLAG(bool, unaligned, false, "No payload or entry begins on a page: 13 bytes behind it.");
ABSL_FLAG(bool, loopback, false,
          "The server's NIC carries traffic of that machine to itself at the same time.");
ABSL_FLAG(bool, both_ways, false, "The server sends to the client as well.");
ABSL_FLAG(double, seconds, 5, "How long an end sends.");
ABSL_FLAG(uint64_t, iterations, 0, "How many payloads an end sends, instead; 0: --seconds.");
ABSL_FLAG(bool, json, false, "Print JSON instead of a line.");

namespace addend::verbs {
namespace {

constexpr char kSummary[] =
    "writes payloads from one machine to another with RDMA, and checks them\n"
    "  addend-verbs --role=server                   on one machine; it serves one client\n"
    "  addend-verbs --role=client --peer=HOST:PORT  on the other, with all else that is chosen\n"
    "  addend-verbs                                 both ends on this machine";

Settings ReadSettings() {
  return {.bytes = absl::GetFlag(FLAGS_bytes).bytes,
          .entries = absl::GetFlag(FLAGS_entries),
          .depth = absl::GetFlag(FLAGS_depth),
          .unaligned = absl::GetFlag(FLAGS_unaligned),
          .loopback = absl::GetFlag(FLAGS_loopback),
          .both_ways = absl::GetFlag(FLAGS_both_ways),
          .seconds = absl::GetFlag(FLAGS_seconds),
          .iterations = absl::GetFlag(FLAGS_iterations)};
}

double Gbps(const Outcome& outcome, uint64_t payload_bytes) {
  if (outcome.seconds <= 0) return 0;
  return 8e-9 * static_cast<double>(outcome.payloads * payload_bytes) / outcome.seconds;
}

// Returns the printed result; a direction without traffic is null.
Json Summary(const Report& report, const Settings& settings) {
  const Outcome &to_server = report.server.outcome, &to_client = report.client.outcome;
  const double forth = Gbps(to_server, settings.bytes), back = Gbps(to_client, settings.bytes);
  const uint64_t payloads = to_server.payloads + to_client.payloads;
  const double gigabytes = 1e-9 * static_cast<double>(payloads * settings.bytes);
  Json json{{"settings", ToJson(settings)},
            {"device", report.client.device},
            {"gid_index", report.client.gid_index},
            {"server_device", report.server.device},
            {"server_gid_index", report.server.gid_index},
            {"to_server_Gbps", forth},
            {"to_client_Gbps", nullptr},
            {"loopback_Gbps", nullptr},
            {"Gbps", forth},
            {"payloads", payloads},
            {"cpu_s_per_GB", nullptr}};
  if (settings.both_ways) {
    json["to_client_Gbps"] = back;
    json["Gbps"] = (forth + back) / 2;
  }
  if (report.server.loopback) {
    json["loopback_Gbps"] = Gbps(*report.server.loopback, settings.bytes);
  }
  if (gigabytes > 0) {
    json["cpu_s_per_GB"] = (to_server.cpu_seconds + to_client.cpu_seconds) / gigabytes;
  }
  return json;
}

std::string Line(const Json& summary) {
  const auto number = [&summary](const char* field) {
    return summary[field].is_null() ? 0.0 : summary[field].get<double>();
  };
  std::string line = absl::StrFormat("%.3f Gbit/s to the server", number("to_server_Gbps"));
  if (!summary["to_client_Gbps"].is_null()) {
    line += absl::StrFormat(", %.3f Gbit/s back", number("to_client_Gbps"));
  }
  if (!summary["loopback_Gbps"].is_null()) {
    line += absl::StrFormat(", %.3f Gbit/s inside the server", number("loopback_Gbps"));
  }
  return line + absl::StrFormat(", %.3f CPU seconds per GB of both ends; %d payloads, as sent",
                                number("cpu_s_per_GB"), summary["payloads"].get<uint64_t>());
}

absl::Status RunClientAndPrint(const HostPort& server) {
  const Settings settings = ReadSettings();
  ADDEND_RETURN_IF_ERROR(CheckSettings(settings));
  ADDEND_ASSIGN_OR_RETURN(
      const Report report,
      RunClient(server, settings, {absl::GetFlag(FLAGS_device), absl::GetFlag(FLAGS_gid_index)}));
  const Json summary = Summary(report, settings);
  std::puts((absl::GetFlag(FLAGS_json) ? summary.dump() : Line(summary)).c_str());
  return absl::OkStatus();
}

// The server is a child process, so that its processor time is separate. Its failures reach the
// client over their connection.
absl::Status RunBoth() {
  ADDEND_RETURN_IF_ERROR(CheckSettings(ReadSettings()));
  ADDEND_ASSIGN_OR_RETURN(UniqueFd listener, Listen({"127.0.0.1", 0}));
  ADDEND_ASSIGN_OR_RETURN(const uint16_t port, PortOf(listener));
  const std::string other = absl::GetFlag(FLAGS_server_device);
  const DeviceChoice choice{other.empty() ? absl::GetFlag(FLAGS_device) : other,
                            absl::GetFlag(FLAGS_gid_index)};
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot start the server: %s", std::strerror(errno)));
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(::getppid() == parent && RunServer(listener, choice).ok() ? 0 : 1);
  }
  listener.Reset();
  const absl::Status status = RunClientAndPrint({"127.0.0.1", port});
  ::waitpid(child, nullptr, 0);
  return status;
}

absl::Status RunRole() {
  const std::string role = absl::GetFlag(FLAGS_role);
  if (role == "both") return RunBoth();
  if (role == "client") {
    const HostPort peer = absl::GetFlag(FLAGS_peer);
    if (peer.port != 0) return RunClientAndPrint(peer);
    return absl::InvalidArgumentError("--role=client needs --peer=HOST:PORT, the server's");
  }
  if (role != "server") {
    return absl::InvalidArgumentError(
        absl::StrFormat("--role=%s is unknown: it is client, server or both", role));
  }
  ADDEND_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(absl::GetFlag(FLAGS_listen)));
  return RunServer(listener, {absl::GetFlag(FLAGS_device), absl::GetFlag(FLAGS_gid_index)});
}

}  // namespace
}  // namespace addend::verbs

int main(int argc, char** argv) {
  return addend::RunProgram({"addend-verbs", addend::verbs::kSummary}, argc, argv,
                            addend::verbs::RunRole);
}
