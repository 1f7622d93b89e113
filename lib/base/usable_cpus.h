// The processors that this process may use at a time.
//
// Standard library and Linux only: libaddend.so includes it. No streams, which need a newer glibc
// than libaddend.so may ask for.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace addend {

// Of a control group, the processors' worth of time that it grants: `quota` is a number of
// microseconds for each `period`, or "max". 0: no limit.
inline double CpusOfQuota(const char* quota, double period) {
  const double granted = std::strtod(quota, nullptr);
  return granted > 0 && period > 0 ? granted / period : 0;
}

namespace internal {

// The first line of a file; empty if there is none.
inline std::string FirstLineOf(const std::string& path) {
  char line[256] = "";
  if (std::FILE* const file = std::fopen(path.c_str(), "re"); file != nullptr) {
    if (std::fgets(line, sizeof(line), file) == nullptr) line[0] = '\0';
    std::fclose(file);
  }
  return line;
}

// Of the group in `folder`, in the files of either version; 0: no limit.
inline double CpusOfGroup(const std::string& folder) {
  const std::string both = FirstLineOf(folder + "/cpu.max");
  if (const size_t space = both.find(' '); space != std::string::npos) {
    return CpusOfQuota(both.c_str(), std::strtod(both.c_str() + space, nullptr));
  }
  const std::string period = FirstLineOf(folder + "/cpu.cfs_period_us");
  return CpusOfQuota(FirstLineOf(folder + "/cpu.cfs_quota_us").c_str(),
                     std::strtod(period.c_str(), nullptr));
}

// The least that the group and its ancestors grant, and at most `cpus`. In a container the path may
// be the host's, which does not exist there; the topmost path is then the container's own group.
inline double CpusOfGroups(const std::string& mount, std::string group, double cpus) {
  while (true) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (const double granted = CpusOfGroup(mount + group); granted > 0) {
      cpus = std::min(cpus, granted);
    }
    if (group.empty()) return cpus;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

// A line of /proc/self/cgroup: "0::/group" in version 2, "3:cpu,cpuacct:/group" in version 1.
inline double CpusOfLine(const std::string& root, const std::string& line, double cpus) {
  const size_t first = line.find(':');
  const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos) return cpus;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  const std::string group = line.substr(second + 1);
  const std::string mount = root + "/sys/fs/cgroup";
  if (controllers.empty()) return CpusOfGroups(mount, group, cpus);
  if (("," + controllers + ",").find(",cpu,") == std::string::npos) return cpus;
  return CpusOfGroups(mount + "/cpu", group, cpus);
}

}  // namespace internal

// `cpus`, or the least limit of the control groups, version 1 or 2, that this process is in, from
// the file systems below `root` ("" for the machine's own). At least 1.
inline double CpusWithinGroups(double cpus, const std::string& root = "") {
  if (std::FILE* const groups = std::fopen((root + "/proc/self/cgroup").c_str(), "re");
      groups != nullptr) {
    char line[4096];
    while (std::fgets(line, sizeof(line), groups) != nullptr) {
      line[std::strcspn(line, "\n")] = '\0';
      cpus = internal::CpusOfLine(root, line, cpus);
    }
    std::fclose(groups);
  }
  return std::max(cpus, 1.0);
}

// The affinity of the calling thread, within its control groups.
inline double UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  return CpusWithinGroups(known ? CPU_COUNT(&set) : 1);
}

}  // namespace addend
