// The conditions for registering and draining.
#include "services/scheduler/admission.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"
#include "lib/auth/secret.h"
#include "lib/base/failure.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/base/version.h"
#include "lib/member/protocols.h"
#include "lib/wire/frame.h"

namespace addend {
namespace {

// Far above the number that anybody runs; each job costs the scheduler a few kilobytes.
constexpr size_t kMaxJobs = 10'000;
constexpr size_t kMaxJobNameBytes = 253;  // as a Kubernetes object's name

bool IsRange(const VersionRange& range) { return 0 < range.oldest && range.oldest <= range.newest; }

template <typename Registration>
absl::Status CheckVersions(std::string_view program, const Registration& request) {
  const uint32_t oldest = request.oldest_protocol_version();
  const uint32_t newest = request.protocol_version();
  const VersionRange control{oldest == 0 ? newest : oldest, newest};
  if (!Common(control, protocol::kControl).has_value()) {
    return MakeFailure(
        FailureKind::kVersion,
        absl::StrFormat(
            "%s on %s speaks %s of the control plane's protocol, but this scheduler speaks %s: "
            "install releases of Addend that have a version in common (docs/operations.md)",
            program, request.hostname(), Describe(control), Describe(protocol::kControl)));
  }
  if (IsRange(FramesOf(request.protocols())) && IsRange(RdmaOf(request.protocols()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s on %s names versions of the data path's protocols whose oldest is 0 or newer than the "
      "newest",
      program, request.hostname()));
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

// The key by which the member is known from now on: a caller that has it speaks for the member.
absl::Status CheckKey(std::string_view program, std::string_view host, std::string_view key) {
  if (key.size() == kMemberKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s on %s registered with a key of %d bytes: a member chooses a key of %d "
                      "bytes that nobody can guess",
                      program, host, key.size(), kMemberKeyBytes));
}

// A member that has brought the job's secret; PERMISSION_DENIED says which secret it has brought
// instead.
absl::Status CheckSecret(const Job& job, uint32_t rank, const std::string& host,
                         std::string_view digest) {
  if (digest == job.secret_digest) return absl::OkStatus();
  const char* const what = digest.empty() ? "brings no secret"
                           : job.secret_digest.empty()
                               ? "brings a secret and the job was created without one"
                               : "brings another secret";
  return WithKind(absl::PermissionDeniedError(
                      absl::StrFormat("node %d (on %s) is not let into job '%s', because it "
                                      "%s: give all agents of a job the same "
                                      "--job-secret-file",
                                      rank, host, job.name, what)),
                  FailureKind::kInvalid);
}

// A member whose settings are those of the job's other nodes; FAILED_PRECONDITION names the first
// setting that differs.
absl::Status CheckSettings(const Job& job, const v1::RegisterNodeRequest& request) {
  const std::vector<Setting> agreed = SettingsOf(job.settings);
  const std::vector<Setting> offered = SettingsOf(request.settings());
  for (size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i].value == offered[i].value) continue;
    return MakeFailure(
        FailureKind::kMismatch,
        absl::StrFormat(
            "%s of job '%s' is %s on %s, but %s on node %d (on %s): give all agents of a job the "
            "same settings",
            agreed[i].flag, job.name, agreed[i].value, NameOf(job.nodes.begin()->second),
            offered[i].value, request.node_rank(), request.hostname()));
  }
  return absl::OkStatus();
}

// Whether no other node of the job binds this node to its settings.
bool BringsSettings(const Job& job, const v1::RegisterNodeRequest& request) {
  if (job.nodes.size() > 1) return false;
  return std::all_of(job.nodes.begin(), job.nodes.end(), [&request](const auto& node) {
    return node.first.value() == request.node_rank() &&
           node.second.info.incarnation() != request.incarnation();
  });
}

template <typename Registration>
bool IsOf(const v1::MemberId& member, const Registration& info) {
  return info.incarnation() == member.incarnation() &&
         auth::Same(auth::BytesOf(info.member_key()), auth::BytesOf(member.key()));
}

// A node, or its colocated server, with which all other nodes of the job speak on the data path;
// FAILED_PRECONDITION (exit status 66) names the first node that does not.
absl::Status CheckFrames(const Job& job, NodeId rank, const std::string& host,
                         const v1::Protocols& protocols) {
  if (job.frames.AllSpeakWith(protocols)) return absl::OkStatus();
  const VersionRange own = FramesOf(protocols);
  for (const auto& [other, node] : job.nodes) {
    const VersionRange theirs = FramesOf(node.info.protocols());
    if (other == rank || Common(own, theirs).has_value()) continue;
    return MakeFailure(
        FailureKind::kVersion,
        absl::StrFormat(
            "node %d (on %s) speaks %s of the frame protocol, but %s of job '%s' speaks %s: "
            "install "
            "releases of Addend that have a version in common (docs/operations.md)",
            rank.value(), host, Describe(own), NameOf(node), job.name, Describe(theirs)));
  }
  return absl::OkStatus();
}

// A colocated server of a node of the job. A job without nodes takes its settings from the next
// node.
absl::Status CheckColocated(const Job& job, const v1::RegisterServerRequest& request) {
  const uint32_t nodes = job.settings.num_nodes();
  if (job.nodes.empty() || request.colocated_node() < nodes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the summation server on %s is colocated with node %d of job '%s', which has %d nodes: ranks "
      "count from 0",
      request.hostname(), request.colocated_node(), job.name, nodes));
}

}  // namespace

absl::Status CheckServerRequest(const v1::RegisterServerRequest& request) {
  ADDEND_RETURN_IF_ERROR(CheckVersions("the summation server", request));
  ADDEND_RETURN_IF_ERROR(
      CheckKey("the summation server", request.hostname(), request.member_key()));
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
  ADDEND_RETURN_IF_ERROR(CheckVersions("the agent", request));
  ADDEND_RETURN_IF_ERROR(CheckKey("the agent", request.hostname(), request.member_key()));
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
  if (settings.local_size() == 0 || settings.local_size() > kMaxLocalSize) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--local-size=%d of the agent on %s must be between 1 and %d",
                        settings.local_size(), request.hostname(), kMaxLocalSize));
  }
  if (settings.partition_bytes() != 0 && settings.partition_bytes() < kMinPartitionBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--partition-bytes=%d of the agent on %s must be at least %d, or 0 for a size that fits "
        "the links",
        settings.partition_bytes(), request.hostname(), kMinPartitionBytes));
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

absl::Status CheckServerOf(const v1::RegisterServerRequest& request, const Jobs& jobs,
                           const std::string& servers_digest) {
  const std::string digest = auth::DigestOf(request.join_proof());
  if (request.colocated_job().empty()) {
    if (digest == servers_digest) return absl::OkStatus();
    return WithKind(
        absl::PermissionDeniedError(absl::StrFormat(
            "the summation server on %s %s: give it the --server-secret-file of the scheduler",
            request.hostname(),
            digest.empty() ? "has brought no secret" : "has another secret than this scheduler")),
        FailureKind::kInvalid);
  }
  const Job* const job = jobs.Find(request.colocated_job());
  if (job == nullptr) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(CheckSecret(*job, request.colocated_node(), request.hostname(), digest));
  ADDEND_RETURN_IF_ERROR(
      CheckFrames(*job, NodeId(request.colocated_node()), request.hostname(), request.protocols()));
  return CheckColocated(*job, request);
}

absl::Status CheckNodeOf(const v1::RegisterNodeRequest& request, const Job& job) {
  ADDEND_RETURN_IF_ERROR(CheckSecret(job, request.node_rank(), request.hostname(),
                                     auth::DigestOf(request.join_proof())));
  if (!BringsSettings(job, request)) ADDEND_RETURN_IF_ERROR(CheckSettings(job, request));
  return CheckFrames(job, NodeId(request.node_rank()), request.hostname(), request.protocols());
}

absl::Status CheckRoomForJob(const std::string& name, const Jobs& jobs) {
  if (jobs.size() < kMaxJobs) return absl::OkStatus();
  return MakeFailure(
      FailureKind::kShortage,
      absl::StrFormat("job '%s' cannot begin: this scheduler has %d jobs, and takes no more",
                      name.substr(0, 253), jobs.size()));
}

absl::Status CheckDrain(const v1::DrainRequest& request, const Server& server,
                        const std::string& servers_digest) {
  if (servers_digest.empty() || auth::DigestOf(request.join_proof()) == servers_digest ||
      auth::Same(auth::BytesOf(request.member_key()), auth::BytesOf(server.info.member_key()))) {
    return absl::OkStatus();
  }
  return WithKind(
      absl::PermissionDeniedError(absl::StrFormat(
          "%s is drained by itself or by somebody who knows the servers' secret: give addendctl "
          "drain the --server-secret-file of the scheduler",
          NameOf(server))),
      FailureKind::kInvalid);
}

bool SpeaksFor(const v1::MemberId& member, const v1::RegisterServerRequest& info) {
  return IsOf(member, info);
}

bool SpeaksFor(const v1::MemberId& member, const v1::RegisterNodeRequest& info) {
  return IsOf(member, info);
}

}  // namespace addend
