// The settings of a process: arguments first, then the environment.
#include "lib/client/settings.h"

#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "lib/base/usable_cpus.h"
#include "lib/client/ipc.h"

namespace addend::client {
namespace {

constexpr char kDefaultSocket[] = "/run/addend/agent.sock";

// Returns NULL for a variable that is not set, or is empty.
const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// A given option takes precedence; -1 (and 0, for options where 0 has no meaning) selects the
// variable.
Error LoadInteger(int32_t option, bool given, const char* variable, int32_t fallback,
                  int32_t* value) {
  if (given) {
    *value = option;
    return {};
  }
  const char* text = Environment(variable);
  if (text == nullptr) {
    *value = fallback;
    return {};
  }
  char* end = nullptr;
  errno = 0;
  const long number = std::strtol(text, &end, 10);
  if (errno != 0 || *end != '\0' || number < 0 || number > std::numeric_limits<int32_t>::max()) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "the environment variable %s is \"%s\", which is not a whole number from 0 on",
                     variable, text);
  }
  *value = static_cast<int32_t>(number);
  return {};
}

Error LoadTimeout(double option, double* value) {
  if (option != 0) {
    if (std::isfinite(option) && option > 0) {
      *value = option;
      return {};
    }
    return MakeError(ADDEND_ERROR_INVALID,
                     "connect_timeout_s is %g, but it must be a number of seconds above 0", option);
  }
  const char* text = Environment("ADDEND_CONNECT_TIMEOUT");
  if (text == nullptr) return {};
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  // The services' flags write durations as "60s"; they read the same variable.
  const bool complete = *end == '\0' || std::strcmp(end, "s") == 0;
  if (end == text || !complete || !std::isfinite(seconds) || seconds <= 0) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "the environment variable ADDEND_CONNECT_TIMEOUT is \"%s\", which is not a "
                     "number of seconds above 0",
                     text);
  }
  *value = seconds;
  return {};
}

// Emulates a slow PCIe link, for experiments.
Error LoadStaging(Settings* settings) {
  const char* text = Environment("ADDEND_STAGING_BANDWIDTH");
  if (text == nullptr) return {};
  char* end = nullptr;
  const double rate = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(rate) || rate <= 0) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "the environment variable ADDEND_STAGING_BANDWIDTH is \"%s\", which is not a "
                     "number of bytes per second above 0",
                     text);
  }
  settings->staging_bytes_per_s = rate;
  return {};
}

Error LoadSpin(std::chrono::nanoseconds* most) {
  // A single processor's time is better spent on work, above all where a container's limit counts
  // it.
  if (UsableCpus() < 2) *most = std::chrono::nanoseconds::zero();
  int32_t micros = -1;
  const Error error = LoadInteger(0, false, "ADDEND_SPIN_US", -1, &micros);
  if (error.ok() && micros >= 0) *most = std::chrono::microseconds(micros);
  return error;
}

Error LoadTexts(const addend_options& options, Settings* settings) {
  const char* socket = options.socket;
  if (socket == nullptr || *socket == '\0') socket = Environment("ADDEND_SOCKET");
  settings->socket = socket != nullptr ? socket : kDefaultSocket;
  if (settings->socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "the socket's path \"%s\" has %zu bytes, but Linux allows %zu; choose a "
                     "shorter one for the agent (--socket) and for ADDEND_SOCKET",
                     settings->socket.c_str(), settings->socket.size(),
                     sizeof(sockaddr_un::sun_path) - 1);
  }
  const char* job = options.job;
  if (job == nullptr || *job == '\0') job = Environment("ADDEND_JOB");
  if (job != nullptr) settings->job = job;
  if (settings->job.size() > ipc::kMaxTextBytes) {
    return MakeError(ADDEND_ERROR_INVALID, "the job's name has %zu bytes, but at most %zu count",
                     settings->job.size(), ipc::kMaxTextBytes);
  }
  return {};
}

Error CheckRanks(const Settings& s) {
  if (s.size < 1 || s.rank < 0 || s.rank >= s.size) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "rank %d of %d ranks does not exist: RANK must be at least 0 and below "
                     "WORLD_SIZE",
                     s.rank, s.size);
  }
  if (s.local_size < 1 || s.local_rank < 0 || s.local_rank >= s.local_size ||
      s.local_size > s.size) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "local rank %d of %d local ranks (of %d ranks in all) does not exist: "
                     "LOCAL_RANK must be at least 0 and below LOCAL_WORLD_SIZE, and that at most "
                     "WORLD_SIZE",
                     s.local_rank, s.local_size, s.size);
  }
  return {};
}

}  // namespace

Error LoadSettings(const addend_options* given, Settings* settings) {
  addend_options options = {};
  options.rank = options.size = options.local_rank = options.local_size = -1;
  if (given != nullptr) {
    if (given->struct_size < sizeof(size_t)) {
      return MakeError(ADDEND_ERROR_INVALID,
                       "addend_options.struct_size is %zu, but it must be sizeof(addend_options)",
                       given->struct_size);
    }
    // A caller of another release may know fewer or more fields: the common fields count.
    std::memcpy(&options, given, std::min(given->struct_size, sizeof(options)));
  }
  Error error = LoadTexts(options, settings);
  if (error.ok()) error = LoadStaging(settings);
  if (error.ok()) error = LoadSpin(&settings->most_spin);
  if (error.ok()) error = LoadTimeout(options.connect_timeout_s, &settings->connect_timeout_s);
  if (error.ok()) {
    error = LoadInteger(options.rank, options.rank >= 0, "RANK", 0, &settings->rank);
  }
  if (error.ok()) {
    error = LoadInteger(options.size, options.size > 0, "WORLD_SIZE", 1, &settings->size);
  }
  if (error.ok()) {
    error = LoadInteger(options.local_rank, options.local_rank >= 0, "LOCAL_RANK", 0,
                        &settings->local_rank);
  }
  if (error.ok()) {
    error = LoadInteger(options.local_size, options.local_size > 0, "LOCAL_WORLD_SIZE", 1,
                        &settings->local_size);
  }
  return error.ok() ? CheckRanks(*settings) : error;
}

}  // namespace addend::client
