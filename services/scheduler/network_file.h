// The places of hosts in the network, from a file.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace addend {

// By address or hostname; the values as RegisterServerRequest.place.
using NetworkPlaces = std::map<std::string, std::string>;

// A line for each host: its address or hostname, and its place, such as "10.0.0.7 zone-a/rack-3".
// "#" begins a comment. INVALID_ARGUMENT names the line.
absl::StatusOr<NetworkPlaces> ParseNetworkPlaces(std::string_view text);
absl::StatusOr<NetworkPlaces> ReadNetworkFile(const std::string& path);

}  // namespace addend
