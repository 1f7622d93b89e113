// The processors that this process may use at a time.
//
// Standard library and Linux only: libaddend.so includes it.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace addend {

// Of a cgroup's cpu.max, "QUOTA PERIOD": the processors' worth of time that it grants; 0: no limit.
inline double CpusOfQuota(const std::string& quota, double period) {
  if (quota.empty() || quota == "max" || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

// Its affinity and the limit of its container, which is at the root of a container's cgroups. At
// least 1.
inline double UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  double cpus = known ? CPU_COUNT(&set) : 1;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period) {
    const double granted = CpusOfQuota(quota, period);
    if (granted > 0) cpus = std::min(cpus, granted);
  }
  return std::max(cpus, 1.0);
}

}  // namespace addend
