// The sum of a tree by whole vectors, level by level, and contributions whose sum depends on the
// order.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "lib/base/sum_tree.h"

namespace addend {

using Values = std::vector<float>;

inline float Add(float a, float b) { return a + b; }
inline float Min(float a, float b) { return b < a ? b : a; }

// Of the contributions by position; nullopt: it adds nothing.
inline std::optional<Values> TreeOf(std::vector<std::optional<Values>> level,
                                    float (*op)(float, float) = &Add) {
  while (level.size() > 1) {
    std::vector<std::optional<Values>> above((level.size() + kSumRadix - 1) / kSumRadix);
    for (size_t i = 0; i < level.size(); ++i) {
      std::optional<Values>& sum = above[i / kSumRadix];
      if (!level[i]) continue;
      if (!sum) {
        sum = std::move(level[i]);
        continue;
      }
      for (size_t e = 0; e < sum->size(); ++e) (*sum)[e] = op((*sum)[e], (*level[i])[e]);
    }
    level = std::move(above);
  }
  return level.front();
}

// Magnitudes spread over 2^20.
inline Values Draw(size_t elements, std::mt19937* random) {
  Values values(elements);
  for (float& value : values) {
    value = std::ldexp(std::normal_distribution<float>()(*random),
                       static_cast<int>((*random)() % 20) - 10);
  }
  return values;
}

// `missing`: the part of the nodes that add nothing.
inline std::vector<std::optional<Values>> DrawAll(uint32_t nodes, size_t elements, double missing,
                                                  std::mt19937* random) {
  std::vector<std::optional<Values>> all(nodes);
  for (auto& values : all) {
    if (std::bernoulli_distribution(1 - missing)(*random)) values = Draw(elements, random);
  }
  return all;
}

}  // namespace addend
