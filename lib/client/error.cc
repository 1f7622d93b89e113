// Errors as sentences: the last error of a thread, the agent's codes, the system's texts.
#include "lib/client/error.h"

#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace addend::client {
namespace {

thread_local std::string last_error;

std::string FormatList(const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

bool IsKnown(uint32_t code) {
  switch (code) {
    case ADDEND_ERROR_INVALID:
    case ADDEND_ERROR_MISMATCH:
    case ADDEND_ERROR_VERSION:
    case ADDEND_ERROR_INTERNAL:
    case ADDEND_ERROR_STATE:
    case ADDEND_ERROR_RESOURCES:
    case ADDEND_ERROR_PEER_LOST:
    case ADDEND_ERROR_UNREACHABLE:
    case ADDEND_ERROR_PERMISSION:
    case ADDEND_ERROR_STALLED:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string Format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = FormatList(format, arguments);
  va_end(arguments);
  return text;
}

Error MakeError(addend_code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Error error{code, FormatList(format, arguments)};
  va_end(arguments);
  return error;
}

Error FromAgent(uint32_t code, std::string_view text) {
  Error error{IsKnown(code) ? static_cast<addend_code>(code) : ADDEND_ERROR_INTERNAL,
              std::string(text)};
  if (error.text.empty()) error.text = Format("the agent reports error %u without a reason", code);
  return error;
}

std::string SystemError(int error_number) {
  char buffer[128];
  // The GNU variant of strerror_r: the text may or may not be in the buffer.
  std::string text = ::strerror_r(error_number, buffer, sizeof(buffer));
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

addend_code Report(const Error& error) {
  if (!error.ok()) last_error = error.text;
  return error.code;
}

const char* LastError() { return last_error.c_str(); }

void Say(std::string_view line) {
  // A single write, so that the lines of several ranks do not mix.
  const std::string text = Format("addend: %.*s\n", static_cast<int>(line.size()), line.data());
  std::fputs(text.c_str(), stderr);
}

}  // namespace addend::client
