// The flags of this binary, with their names and messages. Internal to lib/options.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/flags/commandlineflag.h"
#include "absl/status/status.h"

namespace addend::internal {

// By name (snake_case), in alphabetical order; without the flags that libraries define.
class FlagTable {
 public:
  FlagTable();

  // Null if there is no such flag. `name` in any form: '-' and '_' are the same.
  absl::CommandLineFlag* Find(std::string_view name) const;
  const std::map<std::string, absl::CommandLineFlag*>& flags() const { return flags_; }
  // The nearest flag name (snake_case) to a misspelt `name`; empty if no name is near.
  std::string Nearest(std::string_view name) const;

 private:
  std::map<std::string, absl::CommandLineFlag*> flags_;
};

std::string SnakeCase(std::string_view name);        // "data-listen" -> "data_listen"
std::string Dashed(std::string_view name);           // "data_listen" -> "data-listen"
std::string EnvironmentName(std::string_view name);  // "data_listen" -> "ADDEND_DATA_LISTEN"

bool IsBool(const absl::CommandLineFlag& flag);
// "a whole number from 0 to 4294967295"; empty for types whose own message states it.
std::string Expected(const absl::CommandLineFlag& flag);

// Sets the flag. `written`: the user's text ("--shards=x"); `origin`: its place ("on the command
// line").
absl::Status Set(absl::CommandLineFlag* flag, std::string_view value, std::string_view written,
                 std::string_view origin);

}  // namespace addend::internal
