// The scheduler's status for people.
#pragma once

#include <string>

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Each ends with a line feed. `scheduler` is the address that was asked.
std::string StatusText(const v1::GetStatusResponse& status, const std::string& scheduler);
std::string JobsText(const v1::GetStatusResponse& status);
std::string NodesText(const v1::GetStatusResponse& status);

}  // namespace addend
