// The code that a trainer gets for a failure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace addend {

// An addend_code (lib/client/addend.h). `kind`: as NodeUpdate.failed_kind, or empty.
uint32_t TrainerCode(const absl::Status& why, const std::string& kind);

}  // namespace addend
