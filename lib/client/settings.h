// Settings of addend_init: from the caller's options, else from the environment, else the default.
// Pure except for reading the environment; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lib/client/addend.h"
#include "lib/client/error.h"

namespace addend::client {

struct Settings {
  std::string socket;
  std::string job;  // empty: any
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  double connect_timeout_s = 60;
  double staging_bytes_per_s = 0;  // limits the rate of copies; 0: no limit
  // For how long a waiting call looks for its result before it sleeps, at most (reading.h).
  std::chrono::nanoseconds most_spin = std::chrono::microseconds(200);
};

// ADDEND_ERROR_INVALID names the option or the variable, its value and the allowed values.
Error LoadSettings(const addend_options* options, Settings* settings);

}  // namespace addend::client
