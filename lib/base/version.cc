#include "lib/base/version.h"

namespace addend {

std::string_view Version() { return ADDEND_VERSION; }

}  // namespace addend
