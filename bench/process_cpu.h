// The processor time of processes, and the server process of a Unix socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace addend {

// Returns the user and system seconds of all threads of a process since its start; nullopt if they
// cannot be read.
std::optional<double> ProcessCpuSeconds(pid_t pid);

// Returns the process that listens on a Unix socket; nullopt if it is in another pid namespace.
// Connects once and closes the connection.
std::optional<pid_t> ServerOfSocket(const std::string& path);

}  // namespace addend
