#include "lib/telemetry/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/version.h"

namespace addend {
namespace {

prometheus::MetricFamily Single(std::string name, std::string help, prometheus::MetricType type,
                                double value) {
  prometheus::ClientMetric metric;
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {std::move(name), std::move(help), type, {std::move(metric)}};
}

prometheus::MetricFamily BuildInfo() {
  auto family = Single("addend_build_info", "The version of this process; the value is always 1.",
                       prometheus::MetricType::Gauge, 1);
  family.metric.front().label.push_back({"version", std::string(Version())});
  return family;
}

std::optional<double> ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) return std::nullopt;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

std::optional<double> CpuSeconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return std::nullopt;
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::optional<double> OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (error) return std::nullopt;
  return static_cast<double>(std::distance(begin(descriptors), end(descriptors)));
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = {BuildInfo()};
  if (const auto bytes = ResidentBytes()) {
    families.push_back(Single("process_resident_memory_bytes", "Resident memory.",
                              prometheus::MetricType::Gauge, *bytes));
  }
  if (const auto seconds = CpuSeconds()) {
    families.push_back(Single("process_cpu_seconds_total", "User and system time.",
                              prometheus::MetricType::Counter, *seconds));
  }
  if (const auto open = OpenDescriptors()) {
    families.push_back(
        Single("process_open_fds", "Open file descriptors.", prometheus::MetricType::Gauge, *open));
  }
  return families;
}

}  // namespace addend
