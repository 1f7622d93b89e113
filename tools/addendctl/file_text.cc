#include "tools/addendctl/file_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"

namespace addend {

absl::StatusOr<std::string> ReadFileText(const char* option, const std::string& file, size_t most) {
  const UniqueFd opened(file == "-" ? ::dup(STDIN_FILENO)
                                    : ::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[65536];
  ssize_t got = opened.valid() ? 1 : -1;
  while (got > 0 && (got = ::read(opened.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > most) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the file %s has more than %d bytes; check %s", file, most, option));
    }
  }
  if (got < 0) {
    return absl::InvalidArgumentError(absl::StrFormat("the file %s cannot be read: %s; check %s",
                                                      file, std::strerror(errno), option));
  }
  return text;
}

}  // namespace addend
