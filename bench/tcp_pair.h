// Both ends of a TCP connection over 127.0.0.1, for benchmarks of the kernel alone.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"

namespace addend {

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> ConnectTcpPair();

}  // namespace addend
