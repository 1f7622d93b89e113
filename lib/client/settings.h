// What addend_init has to know, from the caller's options, else from the environment, else the
// default. Pure but for reading the environment; any thread.
#pragma once

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
  double staging_bytes_per_s = 0;  // copies are held to this rate; 0: as fast as they go
};

// ADDEND_ERROR_INVALID names the option or the variable, its value and what is allowed.
Error LoadSettings(const addend_options* options, Settings* settings);

}  // namespace addend::client
