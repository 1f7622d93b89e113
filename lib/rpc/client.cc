#include "lib/rpc/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/strings.h"
#include "lib/rpc/grpc_log.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "lib/rpc/tls_probe.h"

namespace addend {

namespace {

// gRPC's words when one end of a handshake has not liked the other.
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
  internal::RouteGrpcLog();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 300);
  // Despite its name this is how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // A proxy that is meant for the Internet must not come between the members of a cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Connections, and with them the waiting after a failure, are not shared between channels.
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
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

}  // namespace addend
