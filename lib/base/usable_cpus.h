// The processors that this process may use at a time.
//
// Standard library and Linux only: libaddend.so includes it.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace addend {

// Of a cgroup's cpu.max, "QUOTA PERIOD": the processors' worth of time that it grants; 0: no limit.
inline double CpusOfQuota(const char* quota, double period) {
  if (std::strcmp(quota, "max") == 0 || period <= 0) return 0;
  return std::strtod(quota, nullptr) / period;
}

// Its affinity and the limit of its container, which is at the root of a container's cgroups. At
// least 1.
inline double UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  double cpus = known ? CPU_COUNT(&set) : 1;
  // Not by std::ifstream, which needs a newer glibc than libaddend.so may ask for.
  if (std::FILE* const file = std::fopen("/sys/fs/cgroup/cpu.max", "re"); file != nullptr) {
    char quota[32] = "";
    double period = 0;
    if (std::fscanf(file, "%31s %lf", quota, &period) == 2) {
      const double granted = CpusOfQuota(quota, period);
      if (granted > 0) cpus = std::min(cpus, granted);
    }
    std::fclose(file);
  }
  return std::max(cpus, 1.0);
}

}  // namespace addend
