#include "lib/rpc/client.h"

#include <grpc/support/time.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/strings.h"
#include "lib/rpc/grpc_process.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "lib/rpc/tls_probe.h"

namespace addend {

namespace {

constexpr int kLookaheadBytes = 1 << 20;

// True for gRPC's error texts that a failed TLS handshake can cause.
bool MayBeTls(const absl::Status& status) {
  const std::string text = Message(status);
  return absl::IsUnavailable(status) &&
         (absl::StrContains(text, "handshake") || absl::StrContains(text, "erification") ||
          absl::StrContains(text, "ocket closed") || absl::StrContains(text, "reset by peer"));
}

}  // namespace

std::shared_ptr<grpc::Channel> Dial(const std::string& target) {
  return Dial(target, ProcessIdentity());
}

std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsIdentity* identity) {
  return Dial(target, identity, kMaxAnswerBytes);
}

std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsIdentity* identity,
                                    int max_answer_bytes) {
  internal::BeginGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_answer_bytes);
  arguments.SetMaxSendMessageSize(kMaxAnswerBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 300);
  // Despite its name, this argument limits the time of a single attempt to connect.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // The plan of a large job has hundreds of kilobytes. gRPC would find out by probes how much of it
  // may be under way, and each probe costs as much as a call.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
  // An HTTP proxy for Internet traffic must not be used between the members of a cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A channel of its own: connections, and the backoff after a failure, are not shared with other
  // channels.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (identity == nullptr) {
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }
  if (const std::string& name = identity->files().server_name; !name.empty()) {
    arguments.SetSslTargetNameOverride(name);
  }
  return grpc::CreateCustomChannel(target, identity->channel_credentials(), arguments);
}

std::vector<std::string> Targets(const std::string& targets) {
  return absl::StrSplit(targets, ',');
}

absl::Status CallAny(const std::string& targets,
                     absl::FunctionRef<grpc::Status(std::shared_ptr<grpc::Channel>)> call) {
  absl::Status status;
  for (const std::string& target : Targets(targets)) {
    status = FromGrpc(call(Dial(target)));
    if (!IsUnreachable(status)) break;
  }
  return status;
}

std::string WhyUnreachable(const std::string& targets, const absl::Status& status) {
  if (MayBeTls(status)) {
    for (const std::string& target : Targets(targets)) {
      const std::string why = internal::WhyTlsFails(target, ProcessIdentity());
      if (!why.empty()) return absl::StrFormat("no TLS with %s: %s", target, why);
    }
  }
  return ShortReason(status);
}

void SetDeadline(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN)));
}

}  // namespace addend
