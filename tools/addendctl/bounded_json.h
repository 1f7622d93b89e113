// Parses JSON that anybody may have written.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace addend {

constexpr size_t kMaxJsonDepth = 64;
constexpr size_t kMaxJsonValues = 200'000;

// InvalidArgument: not JSON in UTF-8, nested more deeply than kMaxJsonDepth, or with more than
// kMaxJsonValues values and keys; a value costs much more memory than the two bytes that it needs
// in the text. `name`: the subject of the message.
absl::StatusOr<nlohmann::json> ParseBoundedJson(const char* name, const std::string& text);

// The value at a key; null if `object` is no object, or has no such key.
const nlohmann::json& JsonAt(const nlohmann::json& object, const char* key);

}  // namespace addend
