// The scheduler's status as readable tables.
#pragma once

#include <string>

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Each result ends with a line feed. `scheduler` is the queried address.
std::string StatusText(const v1::GetStatusResponse& status, const std::string& scheduler);
std::string JobsText(const v1::GetStatusResponse& status);
std::string NodesText(const v1::GetStatusResponse& status);

}  // namespace addend
