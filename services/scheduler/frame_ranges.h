// The versions of the frame protocol that the nodes of a job speak. Pure.
#pragma once

#include <cstdint>
#include <map>

#include "lib/base/version.h"
#include "lib/member/protocols.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// Each node names its own range, so only two bounds matter: the highest of the oldest versions and
// the lowest of the newest versions.
class FrameRanges {
 public:
  void Add(const v1::Protocols& node) {
    const VersionRange range = FramesOf(node);
    ++oldest_[range.oldest];
    ++newest_[range.newest];
  }
  void Remove(const v1::Protocols& node) {
    const VersionRange range = FramesOf(node);
    CountDown(range.oldest, &oldest_);
    CountDown(range.newest, &newest_);
  }
  // Every node has a version in common with the member.
  bool AllSpeakWith(const v1::Protocols& member) const {
    if (oldest_.empty()) return true;
    const VersionRange own = FramesOf(member);
    return oldest_.rbegin()->first <= own.newest && own.oldest <= newest_.begin()->first;
  }

 private:
  using Counts = std::map<uint32_t, uint32_t>;  // nodes by version
  static void CountDown(uint32_t version, Counts* counts) {
    const auto found = counts->find(version);
    if (found != counts->end() && --found->second == 0) counts->erase(found);
  }
  Counts oldest_, newest_;
};

}  // namespace addend
