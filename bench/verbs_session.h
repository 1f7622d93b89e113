// A whole measurement, at either end.
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
  std::string name;    // empty: the first device
  int gid_index = -1;  // -1: the first suitable GID
};

// The device of an end, and its received payloads.
struct EndReport {
  std::string device;
  int gid_index = 0;
  Outcome outcome{};
  std::optional<Outcome> loopback{};  // at a server with loopback traffic
};
struct Report {
  EndReport client, server;
};

// Serves a single client.
absl::Status RunServer(const UniqueFd& listener, const DeviceChoice& choice);
absl::StatusOr<Report> RunClient(const HostPort& server, const Settings& settings,
                                 const DeviceChoice& choice);

}  // namespace addend::verbs
