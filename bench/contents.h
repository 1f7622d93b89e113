// The values of a benchmark's tensors: random numbers, or gradients that bench/contents recorded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace addend {

// Returns InvalidArgument, naming --contents, unless `path` is a file or a folder.
absl::Status CheckContentsPath(const std::string& path);

class Contents {
 public:
  // Reads the recording of a rank: PATH/rankR.f32 if `path` is a folder, `path` itself if it is a
  // file. With an empty path the values are random and depend on the rank alone.
  static absl::StatusOr<Contents> Read(const std::string& path, int32_t rank);

  // Fills a tensor that begins at element `position` of its workload. A recording is laid over the
  // whole workload, repeated as often as necessary.
  void Fill(float* values, uint64_t elements, uint64_t position) const;

  // Returns the position of the tensor after a tensor of `elements` at `position`: the next block
  // of 64 elements, as in recordings.
  static uint64_t Next(uint64_t position, uint64_t elements);

 private:
  explicit Contents(int32_t rank) : rank_(rank) {}

  int32_t rank_;
  std::vector<float> recorded_;  // empty: random values
};

}  // namespace addend
