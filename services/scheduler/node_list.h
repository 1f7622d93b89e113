// Nodes in a message for people: how many, and the ranks of the first of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace addend {

class NodeList {
 public:
  static constexpr size_t kNamed = 8;  // ranks that a message names

  void Add(uint32_t rank) {
    ++count_;
    if (!full()) first_.push_back(rank);
  }
  // Counts nodes whose ranks are not named.
  void SetCount(size_t count) { count_ = count; }
  bool full() const { return first_.size() >= kNamed; }
  size_t count() const { return count_; }
  uint32_t first() const { return first_.front(); }

  // "node 2", "nodes 0, 2 and 3", "nodes 0, 1, 2, 3, 4, 5, 6, 7 and 92 others". Not of an empty
  // list.
  std::string Text() const {
    if (count_ == 1) return absl::StrFormat("node %d", first_[0]);
    const bool all = count_ <= kNamed;
    const size_t listed = all ? first_.size() - 1 : kNamed;
    const std::string head = absl::StrJoin(first_.begin(), first_.begin() + listed, ", ");
    if (all) return absl::StrFormat("nodes %s and %d", head, first_.back());
    return absl::StrFormat("nodes %s and %d others", head, count_ - listed);
  }

 private:
  size_t count_ = 0;
  std::vector<uint32_t> first_;
};

}  // namespace addend
