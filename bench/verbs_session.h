// A measurement from its begin to its end, at either end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/verbs_settings.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"

namespace addend::verbs {

struct DeviceChoice {
  std::string name;    // empty: the first
  int gid_index = -1;  // -1: what fits
};

// What an end used and received.
struct EndReport {
  std::string device;
  int gid_index = 0;
  Outcome outcome{};
  std::optional<Outcome> loopback{};  // at a server that had such traffic
};
struct Report {
  EndReport client, server;
};

// Serves one client.
absl::Status RunServer(const UniqueFd& listener, const DeviceChoice& choice);
absl::StatusOr<Report> RunClient(const HostPort& server, const Settings& settings,
                                 const DeviceChoice& choice);

}  // namespace addend::verbs
