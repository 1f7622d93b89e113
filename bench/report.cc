#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.3f s", seconds);
}

std::string FormatRate(double bytes_per_second) {
  if (bytes_per_second < 1e9) return absl::StrFormat("%.1f MB/s", bytes_per_second / 1e6);
  return absl::StrFormat("%.2f GB/s", bytes_per_second / 1e9);
}

double Goodput(const Measurement& line) {
  return static_cast<double>(line.bytes) / Percentile(line.seconds, 0.5);
}

std::string FormatChecksum(const Measurement& line) {
  return absl::StrFormat("%016x", line.checksum);
}

}  // namespace

double Percentile(std::vector<double> values, double part) {
  const double rank = std::ceil(part * static_cast<double>(values.size()));
  const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

std::string ToJson(const std::vector<Measurement>& lines) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Measurement& line : lines) {
    nlohmann::ordered_json object;
    object["bytes"] = line.bytes;
    object["iterations"] = line.seconds.size();
    object["p50_s"] = Percentile(line.seconds, 0.5);
    object["p99_s"] = Percentile(line.seconds, 0.99);
    object["goodput_Bps"] = Goodput(line);
    object["cpu_s_per_GB"] =
        line.cpu_s_per_GB ? nlohmann::ordered_json(*line.cpu_s_per_GB) : nullptr;
    object["checksum"] = FormatChecksum(line);
    if (!line.tensor_bytes.empty()) object["tensor_bytes"] = line.tensor_bytes;
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

std::string ToTable(const std::vector<Measurement>& lines, int ranks) {
  std::string text = absl::StrFormat(
      "push-pull of float32 sums on %d ranks; time from push to result on the slowest rank\n"
      "%-12s %12s %6s %10s %10s %12s %12s  %s\n",
      ranks, "tensors", "bytes", "rounds", "p50", "p99", "goodput", "cpu per GB", "checksum");
  for (const Measurement& line : lines) {
    const std::string cpu =
        line.cpu_s_per_GB ? absl::StrFormat("%.2f s", *line.cpu_s_per_GB) : "unknown";
    absl::StrAppendFormat(&text, "%-12s %12d %6d %10s %10s %12s %12s  %s\n", line.name, line.bytes,
                          line.seconds.size(), FormatSeconds(Percentile(line.seconds, 0.5)),
                          FormatSeconds(Percentile(line.seconds, 0.99)), FormatRate(Goodput(line)),
                          cpu, FormatChecksum(line));
  }
  return text;
}

void Print(const std::vector<Measurement>& lines, int ranks, bool json) {
  std::fputs((json ? ToJson(lines) : ToTable(lines, ranks)).c_str(), stdout);
}

}  // namespace addend
