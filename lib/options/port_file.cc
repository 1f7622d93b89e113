#include "lib/options/port_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_format.h"

namespace addend {

absl::Status WritePortFile(const std::string& path, const std::map<std::string, uint16_t>& ports) {
  if (path.empty()) return absl::OkStatus();
  std::string json;
  for (const auto& [name, port] : ports) {
    json += absl::StrFormat("%s\"%s\":%d", json.empty() ? "{" : ",", name, port);
  }
  json += "}\n";
  const std::string temporary = path + ".new";
  std::ofstream(temporary, std::ios::trunc) << json;
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot write --port-file=%s: %s", path, std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace addend
