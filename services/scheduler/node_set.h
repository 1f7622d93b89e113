// A set of a job's nodes, as a bitmap that also is its stored form.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/ids.h"

namespace addend {

class NodeSet {
 public:
  NodeSet() = default;
  // From bits(): node i is bit i % 8 of byte i / 8.
  explicit NodeSet(std::string bits) : bits_(std::move(bits)) {
    for (const char byte : bits_) size_ += __builtin_popcount(static_cast<unsigned char>(byte));
  }

  bool Contains(NodeId node) const {
    const size_t byte = node.value() / 8;
    return byte < bits_.size() && (bits_[byte] >> node.value() % 8 & 1) != 0;
  }
  // False if it was there already.
  bool Insert(NodeId node) {
    if (Contains(node)) return false;
    const size_t byte = node.value() / 8;
    if (byte >= bits_.size()) bits_.resize(byte + 1, '\0');
    bits_[byte] = static_cast<char>(bits_[byte] | 1 << node.value() % 8);
    ++size_;
    return true;
  }
  uint32_t size() const { return size_; }
  const std::string& bits() const { return bits_; }

 private:
  std::string bits_;
  uint32_t size_ = 0;
};

}  // namespace addend
