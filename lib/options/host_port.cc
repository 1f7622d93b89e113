#include "lib/options/host_port.h"

#include <charconv>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

absl::Status Malformed(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%s' is not an address: write HOST:PORT, [IPv6]:PORT, or :PORT for all interfaces", text));
}

absl::StatusOr<uint16_t> ParsePort(std::string_view text) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not a port: it is a number from 0 to 65535", text));
  }
  return static_cast<uint16_t>(port);
}

bool Report(const absl::Status& status, std::string* error) {
  *error = Message(status);
  return status.ok();
}

}  // namespace

std::string HostPort::ToString() const {
  if (host.find(':') != std::string::npos) return absl::StrFormat("[%s]:%d", host, port);
  return absl::StrFormat("%s:%d", host, port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  HostPort result;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Malformed(text);
  std::string_view host = text.substr(0, colon);
  if (!host.empty() && host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return Malformed(text);
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":]/ ") != std::string_view::npos) {
    return Malformed(text);
  }
  result.host = std::string(host);
  ADDEND_ASSIGN_OR_RETURN(result.port, ParsePort(text.substr(colon + 1)));
  return result;
}

bool AbslParseFlag(absl::string_view text, HostPort* value, std::string* error) {
  auto parsed = ParseHostPort(ToStd(text));
  if (!parsed.ok()) return Report(parsed.status(), error);
  *value = *std::move(parsed);
  return true;
}

std::string AbslUnparseFlag(const HostPort& value) { return value.ToString(); }

bool AbslParseFlag(absl::string_view text, OptionalHostPort* value, std::string* error) {
  if (text.empty() || text == "off") {
    value->address.reset();
    return true;
  }
  return AbslParseFlag(text, &value->address.emplace(), error);
}

std::string AbslUnparseFlag(const OptionalHostPort& value) {
  return value.address ? value.address->ToString() : "off";
}

std::string PeerAddresses::ToString() const {
  return absl::StrJoin(addresses, ",", [](std::string* out, const HostPort& address) {
    out->append(address.ToString());
  });
}

bool AbslParseFlag(absl::string_view text, PeerAddresses* value, std::string* error) {
  value->addresses.clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    HostPort& address = value->addresses.emplace_back();
    if (!AbslParseFlag(part, &address, error)) return false;
    if (!address.host.empty() && address.port != 0) continue;
    *error = absl::StrFormat(
        "'%s' cannot be called: write HOST:PORT with a host and a port above 0", ToStd(part));
    return false;
  }
  return true;
}

std::string AbslUnparseFlag(const PeerAddresses& value) { return value.ToString(); }

}  // namespace addend
