// The assertion of the targets: a false condition ends the process as a crash does, so that
// libFuzzer keeps the input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FUZZ_CHECK(condition, reason)                                                  \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, reason); \
      std::abort();                                                                    \
    }                                                                                  \
  } while (false)
