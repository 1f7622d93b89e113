// The options of addend-scheduler: a declared table (options.cc), checked as a whole here.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"
#include "lib/rpc/tls.h"
#include "services/scheduler/network_file.h"

namespace addend {

struct SchedulerOptions {
  HostPort listen;
  HostPort http;
  std::optional<HostPort> health_listen;
  std::string store;  // as OpenStore takes it; empty: the default database
  struct {
    TlsFiles tls;  // empty: plain text
    std::string user;
    std::string password_file;
  } etcd;
  absl::Duration lease;
  bool react_to_stragglers = true;
  bool measure_network = true;
  NetworkPlaces network_places;
  absl::Duration token_lifetime;
  std::string servers_digest;  // of the proof that CPU servers must bring; empty: no proof
  std::string port_file;       // empty: no file is written
};

// Reads the parsed flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<SchedulerOptions> ReadSchedulerOptions();

}  // namespace addend
