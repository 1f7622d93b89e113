// The scheduler's page for people and its /api: the same JSON that addendctl prints.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/telemetry/http_server.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Thread-safe: the HTTP server's threads read, the scheduler's main thread chooses the answer. Must
// outlive the server that has its routes.
class StatusPage {
 public:
  using StatusFn = std::function<v1::GetStatusResponse()>;

  using NetworkFn = std::function<absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>>()>;

  // "/", its files, "/api/status" and "/api/network".
  std::vector<HttpRoute> Routes();

  // From now on this scheduler does not lead. `leader`: the scheduler that does; empty: not known.
  // When StandBy returns, the former functions of Show() are not running and will not be called.
  void StandBy(std::string leader) ABSL_LOCKS_EXCLUDED(mu_);
  // This scheduler leads, and `status` and `network` read its state.
  void Show(StatusFn status, NetworkFn network) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  HttpAnswer Status() ABSL_LOCKS_EXCLUDED(mu_);
  HttpAnswer Network() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  std::string leader_ ABSL_GUARDED_BY(mu_);
  StatusFn status_ ABSL_GUARDED_BY(mu_);  // empty, as network_: stands by
  NetworkFn network_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend
