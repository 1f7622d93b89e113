// The contributions that are counted, in the order of sending.
#include "lib/transport/contribution_pace.h"

#include <iterator>

namespace addend {

bool ContributionPace::HasRoom(int32_t urgency) const {
  uint64_t counted = 0;
  for (const auto& [other, bytes] : bytes_) {
    if (other < urgency) break;
    counted += bytes;
    if (counted >= limit_) return false;
  }
  return true;
}

void ContributionPace::OnSent(uint64_t link, PartitionId partition, int32_t priority,
                              int32_t urgency, uint64_t bytes, absl::Time now) {
  const Key key(link, partition);
  // Of a round before, whose result came another way.
  if (const auto former = sequences_.find(key); former != sequences_.end()) {
    Remove(sent_.find(former->second));
  }
  if (sent_.empty()) heard_ = now;
  if (bytes > largest_) {
    largest_ = bytes;
    SetLimit();
  }
  sequences_[key] = ++last_sequence_;
  const Sent& sent = sent_[last_sequence_] = {
      .key = key, .priority = priority, .urgency = urgency, .bytes = bytes, .at = now};
  Count(sent);
}

bool ContributionPace::OnArrived(uint64_t link, PartitionId partition, absl::Time now) {
  heard_ = now;
  const auto sequence = sequences_.find(Key(link, partition));
  if (sequence == sequences_.end()) return false;
  Remove(sent_.find(sequence->second));
  return true;
}

void ContributionPace::OnLost(uint64_t link) {
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    const auto next = std::next(sent);
    if (sent->second.key.first == link) Remove(sent);
    sent = next;
  }
}

void ContributionPace::OnTime(absl::Time now) {
  while (!sent_.empty() && now - sent_.begin()->second.at >= kLongest) Remove(sent_.begin());
  if (now - heard_ < kSilence) return;
  heard_ = now;
  uint64_t forgiven = 0;
  while (!sent_.empty() && forgiven < limit_ / 2) {
    forgiven += sent_.begin()->second.bytes;
    Remove(sent_.begin());
  }
}

void ContributionPace::Reorder(const std::function<int32_t(int32_t priority)>& urgency) {
  bytes_.clear();
  for (auto& [sequence, sent] : sent_) {
    sent.urgency = urgency(sent.priority);
    Count(sent);
  }
}

void ContributionPace::Count(const Sent& sent) { bytes_[sent.urgency] += sent.bytes; }

void ContributionPace::Remove(BySequence::iterator sent) {
  const auto counted = bytes_.find(sent->second.urgency);
  counted->second -= sent->second.bytes;
  if (counted->second == 0) bytes_.erase(counted);
  sequences_.erase(sent->second.key);
  sent_.erase(sent);
}

}  // namespace addend
