// A set of numbers that were given. They are given in ascending order but for a few gaps, so the
// set stores ranges and does not grow with the numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace addend {

class GivenNumbers {
 public:
  bool Contains(uint32_t number) const {
    const auto above = ranges_.upper_bound(number);
    return above != ranges_.begin() && number <= std::prev(above)->second;
  }
  void Insert(uint32_t number) {
    if (Contains(number)) return;
    uint64_t last = number;
    const auto above = ranges_.upper_bound(number);
    if (above != ranges_.end() && above->first == last + 1) {
      last = above->second;
      ranges_.erase(above);
    }
    const auto below = ranges_.lower_bound(number);
    if (below != ranges_.begin() && std::prev(below)->second + 1 == number) {
      std::prev(below)->second = last;
    } else {
      ranges_[number] = last;
    }
  }
  size_t ranges() const { return ranges_.size(); }

 private:
  std::map<uint32_t, uint64_t> ranges_;  // the first of each: the last; no two of them touch
};

}  // namespace addend
