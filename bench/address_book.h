// Where the services of a local cluster listen, as they write it down themselves (--port-file).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace addend {

// The port named `key` ("grpc", "data") in a port file; nothing while the file is not there yet.
std::optional<uint16_t> ReadPort(const std::string& path, const std::string& key);

}  // namespace addend
