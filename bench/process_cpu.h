// The processor time of processes, and who serves a Unix socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace addend {

// User and system seconds of all threads of a process since its start; nothing if it cannot be
// read.
std::optional<double> ProcessCpuSeconds(pid_t pid);

// The process that listens on a Unix socket, nothing if it is in another pid namespace. Connects
// once and closes again.
std::optional<pid_t> ServerOfSocket(const std::string& path);

}  // namespace addend
