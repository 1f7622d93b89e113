// Small files that hold a text.
#include "lib/base/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace addend {

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(
        absl::StrFormat("'%s' cannot be read: %s", path, std::strerror(errno)));
  }
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

}  // namespace addend
