#include "lib/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include "lib/base/log.h"

namespace addend::internal {
namespace {

void Log(gpr_log_func_args* args) {
  spdlog::debug("grpc: {} ({}:{})", args->message, args->file, args->line);
}

}  // namespace

void RouteGrpcLog() {
  static const bool routed = [] {
    gpr_set_log_function(Log);
    return true;
  }();
  (void)routed;
}

}  // namespace addend::internal
