// Network addresses as flags: where to listen, and whom to call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace addend {

// Where a service listens: `--listen=:7070`, `--listen=127.0.0.1:0`, `--listen=[::1]:7070`.
struct HostPort {
  std::string host;   // empty: all interfaces; an IPv6 address stands here without its brackets
  uint16_t port = 0;  // 0: the kernel chooses

  // The form that ParseHostPort accepts: ":7070", "[::1]:7070".
  std::string ToString() const;
  bool operator==(const HostPort&) const = default;
};

// InvalidArgument says what an address looks like.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

bool AbslParseFlag(absl::string_view text, HostPort* value, std::string* error);
std::string AbslUnparseFlag(const HostPort& value);

// A listener that may be switched off: an empty value or "off" is none.
struct OptionalHostPort {
  std::optional<HostPort> address;
};
bool AbslParseFlag(absl::string_view text, OptionalHostPort* value, std::string* error);
std::string AbslUnparseFlag(const OptionalHostPort& value);

// Whom to call: `--scheduler=scheduler.addend:7070`, or one of several: `a:7070,b:7070`. Host and
// port are both required, the port is not 0.
struct PeerAddresses {
  std::vector<HostPort> addresses;  // at least one
  std::string ToString() const;
};
bool AbslParseFlag(absl::string_view text, PeerAddresses* value, std::string* error);
std::string AbslUnparseFlag(const PeerAddresses& value);

}  // namespace addend
