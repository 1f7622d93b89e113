// The ports of a local cluster's services, from the files that the services write (--port-file).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace addend {

// Returns the port named `key` ("grpc", "data") in a port file; nullopt until the file exists.
std::optional<uint16_t> ReadPort(const std::string& path, const std::string& key);

}  // namespace addend
