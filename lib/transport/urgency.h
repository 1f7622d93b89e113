// The order in which a node sends tensors whose pushes recur in sweeps, as in a training: a
// backward pass pushes the least urgent tensors first, and the most urgent tensor, which the next
// forward pass needs first, at its end.
//
// Until then no result is needed, and the priorities only decide which bytes are left for the
// forward pass. If every push interrupted the pushes before it, each interruption would leave
// partitions behind that some nodes have sent and others have not, and their results would be
// missing on the links from the servers. So within a sweep tensors of similar priority form a
// class, which is sent in the order of the pushes: a handful of classes, of about the same number
// of bytes, interrupt each other. At the end of the sweep the priorities hold again. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace addend {

class Urgency {
 public:
  // The classes have about the same number of bytes. More classes interrupt each other more often;
  // fewer classes leave more urgent bytes for the forward pass (bench/models).
  static constexpr int kClasses = 4;
  // The least and the largest number of priorities in a sweep. At most an eighth of a sweep's
  // pushes are less urgent than the push before.
  static constexpr size_t kLeastPriorities = 2 * kClasses, kMostPriorities = 1 << 16;

  // A tensor is pushed. True: Of() may have changed for tensors that were pushed before.
  bool OnPush(int32_t priority, uint64_t bytes);
  // The priority, or within a sweep the highest priority of its class. Keeps the order.
  int32_t Of(int32_t priority) const;

 private:
  bool IsSweep() const;
  void EndSweep();

  std::map<int32_t, uint64_t> pushed_;  // in the present sweep: bytes by priority
  std::map<int32_t, int32_t> classes_;  // of the last sweep: lowest priority -> highest
  uint64_t pushes_ = 0, descents_ = 0;  // in the present sweep
  int32_t last_ = 0;
  bool sweeping_ = false;
};

}  // namespace addend
