// Defaults for the calls of an input.
#pragma once

#include <string>

#include "lib/base/version.h"

namespace addend::fuzz {

// Fills in the current version, so that inputs survive new versions, and the key that all members
// have.
template <typename Request>
Request OfThisVersion(Request request) {
  if (request.protocol_version() == 0) request.set_protocol_version(kProtocolVersion);
  if (request.member_key().empty()) request.set_member_key(std::string(32, 'k'));
  return request;
}

// Fills in the member's own key.
template <typename Request>
Request ByItself(Request request) {
  if (request.member().key().empty()) request.mutable_member()->set_key(std::string(32, 'k'));
  return request;
}

}  // namespace addend::fuzz
