// Text forms of sizes and bandwidths. Decimal units (KB, MB, Gbps) are powers of 1000, KiB and MiB
// of 1024.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace addend {

// "4096", "4KB", "128KiB", "8GiB" -> bytes.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);
std::string FormatByteSize(uint64_t bytes);

// "10Gbps", "400Mbit/s", "1e9" -> bits per second.
absl::StatusOr<double> ParseBandwidth(std::string_view text);
std::string FormatBandwidth(double bits_per_second);

// A flag's value: `--memory-limit=8GiB`.
struct ByteSize {
  uint64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

// A flag's value: a size as above, or `auto`, which is 0.
struct AutoByteSize {
  uint64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, AutoByteSize* size, std::string* error);
std::string AbslUnparseFlag(AutoByteSize size);

// A flag's value: `--bandwidth=10Gbps`; 0 means unknown.
struct Bandwidth {
  double bits_per_second = 0;
};
bool AbslParseFlag(absl::string_view text, Bandwidth* bandwidth, std::string* error);
std::string AbslUnparseFlag(Bandwidth bandwidth);

}  // namespace addend
