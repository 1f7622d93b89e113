// The files of services/scheduler/page/, as they were when this was built.
#pragma once

#include <string_view>

namespace addend {

// By the file's name, "page.js"; empty: there is no such file.
std::string_view PageFile(std::string_view name);

}  // namespace addend
