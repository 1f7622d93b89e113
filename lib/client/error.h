// Errors inside the library: a code of the C ABI and a readable sentence. The only exception is
// std::bad_alloc, which addend.cc turns into ADDEND_ERROR_RESOURCES.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/client/addend.h"

namespace addend::client {

struct [[nodiscard]] Error {
  addend_code code = ADDEND_OK;
  std::string text;

  bool ok() const { return code == ADDEND_OK; }
};

// Formats like printf, into a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
Error MakeError(addend_code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The agent's error. A code that this library does not know becomes an internal error.
Error FromAgent(uint32_t code, std::string_view text);

// The system's text for an errno: "connection refused", in lower case, for the middle of a
// sentence.
std::string SystemError(int error_number);

// Keeps a failure's sentence for addend_last_error() of this thread; returns the code.
addend_code Report(const Error& error);
const char* LastError();

// Prints a line on stderr: "addend: ...".
void Say(std::string_view line);

}  // namespace addend::client
