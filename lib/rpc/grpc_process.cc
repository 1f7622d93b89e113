#include "lib/rpc/grpc_process.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"

namespace addend::internal {
namespace {

constexpr absl::Duration kBetweenHandshakeLines = absl::Seconds(10);
constexpr std::string_view kHandshake = "Handshake failed with fatal error";

// Failed handshakes of a server. A server refuses an untrusted peer without a status that any
// caller sees, and peers retry several times a second: each reason is logged once in a while.
class Handshakes {
 public:
  // `message` ends with OpenSSL's reason: "...: SSL routines::peer did not return a certificate."
  void HaveFailed(std::string_view message) {
    std::string reason(message.substr(message.rfind(':') + 1));
    if (!reason.empty() && reason.back() == '.') reason.pop_back();
    if (!IsDue(reason)) return;
    const bool plain = reason == "wrong version number" || reason == "http request";
    spdlog::warn("a TLS handshake has failed: {}{}", reason,
                 plain ? " (the other end speaks plain text)" : "");
  }

 private:
  bool IsDue(const std::string& reason) {
    const absl::Time now = SteadyNow();
    MutexLock lock(&mu_);
    absl::Time& due = due_.try_emplace(reason, absl::InfinitePast()).first->second;
    if (now < due) return false;
    due = now + kBetweenHandshakeLines;
    return true;
  }

  Mutex mu_;
  std::map<std::string, absl::Time> due_ ABSL_GUARDED_BY(mu_);  // by reason; OpenSSL has few
                                                                // reasons
};

void Log(gpr_log_func_args* args) {
  const std::string_view message = args->message;
  static auto* const handshakes = new Handshakes();  // leaked: gRPC's threads may outlive main()
  if (message.substr(0, kHandshake.size()) == kHandshake) handshakes->HaveFailed(message);
  spdlog::debug("grpc: {} ({}:{})", args->message, args->file, args->line);
}

void Ignore(gpr_log_func_args* /*args*/) {}

}  // namespace

void BeginGrpc() {
  static const bool begun = [] {
    // Never shut down: gRPC then joins its threads, and its poller may wait for 10 s for a
    // connection that has gone already. A process that is told to stop would end so much later.
    ::grpc_init();
    gpr_set_log_function(Log);
    // gRPC's threads may log while the process ends, when Addend's log is gone.
    std::atexit([] { gpr_set_log_function(Ignore); });
    return true;
  }();
  (void)begun;
}

}  // namespace addend::internal
