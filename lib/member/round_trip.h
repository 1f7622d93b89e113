// The round trip to another machine, as the kernel measures it while it opens a connection: no
// process of either machine has a part in it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace addend {

// The least of `times` connections to `address` ("host:port", the host a number), which are closed
// at once. Blocks for at most a second, or until `give_up` returns true: CANCELLED. UNAVAILABLE:
// nobody answers there.
absl::StatusOr<absl::Duration> LeastRoundTrip(const std::string& address, int times,
                                              const std::function<bool()>& give_up);

}  // namespace addend
