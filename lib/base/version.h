// The version of this build, as CMakeLists.txt states it.
#pragma once

#include <string_view>

namespace addend {

std::string_view Version();

}  // namespace addend
