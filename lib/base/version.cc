#include "lib/base/version.h"

namespace addend {

std::string_view Version() { return ADDEND_VERSION; }

std::string Describe(const VersionRange& range) {
  if (range.oldest == range.newest) return "version " + std::to_string(range.newest);
  return "versions " + std::to_string(range.oldest) + " to " + std::to_string(range.newest);
}

}  // namespace addend
