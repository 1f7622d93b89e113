// The parameter tensors of four well-known models, as their frameworks register them (float32, in
// the order of the forward pass), computed from the architectures. For plans, benchmarks and tests
// on realistic sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace addend {

struct ModelTensor {
  std::string name;
  uint64_t elements = 0;
};

// "resnet50", "vgg16", "bert-large" (with pooler, without a task's head) or "gpt2" (124M, output
// layer tied to the embedding). INVALID_ARGUMENT for any other name.
absl::StatusOr<std::vector<ModelTensor>> ModelTensors(std::string_view model);

// The names that ModelTensors knows.
std::vector<std::string_view> ModelNames();

}  // namespace addend
