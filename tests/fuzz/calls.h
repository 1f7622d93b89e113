// Calls of an input, as they are made.
#pragma once

#include "lib/base/version.h"

namespace addend::fuzz {

// A registration that names no version is of this one, so that inputs last longer than versions.
template <typename Request>
Request OfThisVersion(Request request) {
  if (request.protocol_version() == 0) request.set_protocol_version(kProtocolVersion);
  return request;
}

}  // namespace addend::fuzz
