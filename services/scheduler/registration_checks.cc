// What a registration has to fulfil before membership looks at it.
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/exit_codes.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/base/version.h"
#include "lib/wire/frame.h"
#include "services/scheduler/membership_scope.h"

namespace addend {
namespace {

constexpr size_t kMaxJobNameBytes = 253;  // as a Kubernetes object's name
constexpr uint32_t kMaxNodes = 1 << 16;

absl::Status CheckVersion(std::string_view program, std::string_view host, uint32_t version) {
  if (version == kProtocolVersion) return absl::OkStatus();
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrFormat(
          "%s on %s speaks protocol version %d, but this scheduler speaks version %d: run the same "
          "release of Addend everywhere",
          program, host, version, kProtocolVersion)),
      kExitVersion);
}

// A setting as its flag spells it.
struct Setting {
  std::string flag;
  std::string value;
};

std::vector<Setting> SettingsOf(const v1::JobSettings& s) {
  return {{"--num-nodes", absl::StrFormat("%d", s.num_nodes())},
          {"--local-size", absl::StrFormat("%d", s.local_size())},
          {"--partition-bytes", AbslUnparseFlag(AutoByteSize{s.partition_bytes()})},
          {"--on-node-loss", s.on_node_loss()},
          {"--reduction-order", s.reduction_order()},
          {"--stall-timeout", absl::StrFormat("%gs", s.stall_timeout_s())},
          {"--audit-one-in", absl::StrFormat("%d", s.audit_one_in())},
          {"--intranode", s.intranode()},
          {"--deterministic-intranode", s.deterministic_intranode() ? "true" : "false"}};
}

}  // namespace

absl::Status CheckServerRequest(const v1::RegisterServerRequest& request) {
  ADDEND_RETURN_IF_ERROR(
      CheckVersion("the summation server", request.hostname(), request.protocol_version()));
  return CheckServer(request);
}

absl::Status CheckServer(const v1::RegisterServerRequest& request) {
  if (request.incarnation() == 0) {
    return absl::InvalidArgumentError("a summation server registered without an incarnation");
  }
  if (request.shards() == 0 || request.shards() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shards=%d of the summation server on %s must be between 1 and %d",
                        request.shards(), request.hostname(), kMaxShards));
  }
  if (request.endpoints().empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the summation server on %s names no address for data: give it --data-listen",
        request.hostname()));
  }
  return absl::OkStatus();
}

absl::Status CheckNodeRequest(const v1::RegisterNodeRequest& request) {
  ADDEND_RETURN_IF_ERROR(CheckVersion("the agent", request.hostname(), request.protocol_version()));
  return CheckNode(request);
}

absl::Status CheckNode(const v1::RegisterNodeRequest& request) {
  const v1::JobSettings& settings = request.settings();
  if (request.incarnation() == 0) {
    return absl::InvalidArgumentError("an agent registered without an incarnation");
  }
  if (request.job().empty() || request.job().size() > kMaxJobNameBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("--job='%s' must have between 1 and %d bytes",
                                                      request.job().substr(0, kMaxJobNameBytes),
                                                      kMaxJobNameBytes));
  }
  if (settings.num_nodes() == 0 || settings.num_nodes() > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrFormat("--num-nodes=%d must be between 1 and %d",
                                                      settings.num_nodes(), kMaxNodes));
  }
  if (request.node_rank() >= settings.num_nodes()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--node-rank=%d of the agent on %s must be less than --num-nodes=%d: ranks count from 0",
        request.node_rank(), request.hostname(), settings.num_nodes()));
  }
  if (settings.local_size() == 0) {
    return absl::InvalidArgumentError("--local-size=0 must be at least 1");
  }
  if (settings.partition_bytes() > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--partition-bytes=%d of the agent on %s must be at most %d: a partition is one payload",
        settings.partition_bytes(), request.hostname(), kMaxPayloadBytes));
  }
  if (const std::string& policy = settings.on_node_loss();
      !policy.empty() && policy != "fail" && policy != "shrink") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--on-node-loss=%s is not known to this scheduler: use fail or shrink", policy));
  }
  if (!settings.reduction_order().empty() && settings.reduction_order() != "node") {
    return absl::InvalidArgumentError(
        absl::StrFormat("--reduction-order=%s is not supported by this version: use node",
                        settings.reduction_order()));
  }
  return absl::OkStatus();
}

absl::Status CheckSettings(const Job& job, const v1::RegisterNodeRequest& request) {
  const std::vector<Setting> agreed = SettingsOf(job.settings);
  const std::vector<Setting> offered = SettingsOf(request.settings());
  for (size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i].value == offered[i].value) continue;
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrFormat(
            "%s of job '%s' is %s on %s, but %s on node %d (on %s): give all agents of a job the "
            "same settings",
            agreed[i].flag, job.name, agreed[i].value, NameOf(job.nodes.begin()->second),
            offered[i].value, request.node_rank(), request.hostname())),
        kExitMismatch);
  }
  return absl::OkStatus();
}

}  // namespace addend
