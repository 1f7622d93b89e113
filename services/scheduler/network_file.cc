#include "services/scheduler/network_file.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/text_file.h"

namespace addend {
namespace {

constexpr size_t kPlaceBytesMost = 256;

}  // namespace

absl::StatusOr<NetworkPlaces> ParseNetworkPlaces(std::string_view text) {
  NetworkPlaces places;
  int number = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view content = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(content, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() != 2) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "line %d has %d words: write a host's address or name, and its place, such as "
          "'10.0.0.7 zone-a/rack-3'",
          number, words.size()));
    }
    if (words[1].size() > kPlaceBytesMost) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the place in line %d is longer than %d "
                          "bytes",
                          number, kPlaceBytesMost));
    }
    if (!places.emplace(words[0], words[1]).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d names %s a second time", number, words[0]));
    }
  }
  return places;
}

absl::StatusOr<NetworkPlaces> ReadNetworkFile(const std::string& path) {
  ADDEND_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  absl::StatusOr<NetworkPlaces> places = ParseNetworkPlaces(text);
  if (places.ok()) return places;
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, Message(places.status())));
}

}  // namespace addend
