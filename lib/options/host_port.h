// Network addresses as flags: addresses to listen on and addresses of peers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace addend {

// The address of a listener: `--listen=:7070`, `--listen=127.0.0.1:0`, `--listen=[::1]:7070`.
struct HostPort {
  std::string host;   // empty: all interfaces; an IPv6 address is without its brackets
  uint16_t port = 0;  // 0: the kernel chooses

  // The form that ParseHostPort accepts: ":7070", "[::1]:7070".
  std::string ToString() const;
  bool operator==(const HostPort&) const = default;
};

// The message of InvalidArgument shows the form of an address.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

bool AbslParseFlag(absl::string_view text, HostPort* value, std::string* error);
std::string AbslUnparseFlag(const HostPort& value);

// A listener that may be switched off: no address if the value is empty or "off".
struct OptionalHostPort {
  std::optional<HostPort> address;
};
bool AbslParseFlag(absl::string_view text, OptionalHostPort* value, std::string* error);
std::string AbslUnparseFlag(const OptionalHostPort& value);

// The address of a service: `--scheduler=scheduler.addend:7070`, or several alternatives:
// `a:7070,b:7070`. Host and port are both required, the port is not 0.
struct PeerAddresses {
  std::vector<HostPort> addresses;  // never empty
  std::string ToString() const;
};
bool AbslParseFlag(absl::string_view text, PeerAddresses* value, std::string* error);
std::string AbslUnparseFlag(const PeerAddresses& value);

}  // namespace addend
