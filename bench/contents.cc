#include "bench/contents.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_format.h"
#include "lib/base/mix.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr uint64_t kBlockElements = 64;

void FillRandom(float* values, uint64_t elements, uint64_t seed) {
  for (uint64_t i = 0; i < elements; ++i) {
    // In [-1, 1), with so many bits that the sum depends on the order.
    values[i] = static_cast<float>(static_cast<int32_t>(Mix(seed + i))) * 0x1p-31f;
  }
}

absl::StatusOr<std::vector<float>> ReadFloats(const std::string& file) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(file, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--contents: cannot read %s: %s; bench/contents --ranks records gradients for that many "
        "ranks",
        file, error.message()));
  }
  if (bytes == 0 || bytes % (kBlockElements * sizeof(float)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--contents: %s has %d bytes; a recording has blocks of %d float32 numbers",
                        file, bytes, kBlockElements));
  }
  std::vector<float> values(bytes / sizeof(float));
  std::ifstream stream(file, std::ios::binary);
  stream.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes));
  if (!stream) return absl::InvalidArgumentError("--contents: cannot read " + file);
  return values;
}

}  // namespace

absl::Status CheckContentsPath(const std::string& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_directory(path, error) ||
      std::filesystem::is_regular_file(path, error)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--contents=%s is no file and no folder; bench/contents records gradients and prints their "
      "folders",
      path));
}

absl::StatusOr<Contents> Contents::Read(const std::string& path, int32_t rank) {
  ADDEND_RETURN_IF_ERROR(CheckContentsPath(path));
  Contents contents(rank);
  if (path.empty()) return contents;
  const std::string file =
      std::filesystem::is_directory(path) ? absl::StrFormat("%s/rank%d.f32", path, rank) : path;
  ADDEND_ASSIGN_OR_RETURN(contents.recorded_, ReadFloats(file));
  return contents;
}

void Contents::Fill(float* values, uint64_t elements, uint64_t position) const {
  if (recorded_.empty()) {
    FillRandom(values, elements, (static_cast<uint64_t>(rank_) << 40) + elements);
    return;
  }
  for (uint64_t done = 0; done < elements;) {
    const uint64_t from = (position + done) % recorded_.size();
    const uint64_t count = std::min(elements - done, recorded_.size() - from);
    std::copy_n(recorded_.data() + from, count, values + done);
    done += count;
  }
}

uint64_t Contents::Next(uint64_t position, uint64_t elements) {
  const uint64_t blocks = (elements + kBlockElements - 1) / kBlockElements;
  return position + blocks * kBlockElements;
}

}  // namespace addend
