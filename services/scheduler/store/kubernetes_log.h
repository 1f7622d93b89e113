// The scheduler's records in Secrets of Kubernetes' API: a log of writes with a head. Secrets,
// since the records have the jobs' keys.
//
// Kubernetes' API changes a single object at a time, and an object has at most 1 MiB. So a batch of
// writes goes into the head's tail, if it is short, or into segments, which are Secrets that
// never change; replacing the head makes it valid. Invariants:
//  1. The state is what the head names: a batch is there as a whole or not at all.
//  2. A replacement names the version of the head that this writer has written. A new leader
//     replaces the head first (TakeOver), so from then on no write of a former leader succeeds.
//  3. When the log has become twice as long as its state, new segments with the state replace it.
//     Segments that no head names are deleted then, and by the next leader.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/store/kubernetes_api.h"
#include "services/scheduler/store/store.h"
#include "services/scheduler/store/value_parts.h"

namespace addend {

class KubernetesLog {
 public:
  // Of all records together. More would slow the cluster's API server down for everybody.
  static constexpr size_t kMaxBytes = 64 << 20;

  // `name`: of the head; segments are called NAME-EPOCH-NUMBER, and both have the label
  // addend.io/store=NAME. `writer` is unique. `objects` must outlive it.
  // `pause` waits between two attempts; false: give up. `deadline` says until when this writer is
  // certain to lead; asked before each attempt.
  KubernetesLog(KubernetesObjects* objects, std::string name, std::string writer,
                std::function<bool(absl::Duration)> pause, std::function<absl::Time()> deadline);

  // To be called first. All calls try again until the deadline.
  absl::Status TakeOver();
  // Everything, ascending by key. DATA_LOSS: a segment is missing or damaged.
  absl::StatusOr<std::vector<StoreEntry>> Load();
  // ABORTED: another writer has taken over. RESOURCE_EXHAUSTED: the records would be too many, and
  // nothing has changed. After any other error the log must not be used any more.
  absl::Status Apply(std::span<const StoreWrite> writes);

 private:
  using Attempt = absl::AnyInvocable<absl::Status(absl::Time deadline)>;
  // Repeats an attempt that may succeed later, until the deadline.
  absl::Status Persist(Attempt attempt);
  nlohmann::json HeadObject(const v1::LogHead& head) const;
  absl::StatusOr<v1::LogHead> ReadHead(const nlohmann::json& object) const;
  // Replaces the head, if it is still the one that this writer has written.
  absl::Status Commit(v1::LogHead head);
  // Writes records into new segments, and names them in `head`.
  absl::Status AddSegments(std::span<const v1::JournalRecord> records, v1::LogHead* head);
  absl::Status AddSegment(const v1::LogSegment& segment, v1::LogHead* head);
  absl::Status Replay();
  // The error of a segment that cannot be read: DATA_LOSS, unless another writer has replaced it.
  absl::Status Lost(const std::string& segment, std::string_view why);
  // The size of the state after `records`.
  uint64_t SizeAfter(std::span<const v1::JournalRecord> records) const;
  void Keep(const v1::JournalRecord& record);
  bool IsLong() const;
  // Replaces a log that has grown long by segments with its state. If segments cannot be made, the
  // log stays as it is.
  absl::Status Compact();
  // Deletes some of the segments of this epoch and of former ones that the head does not name.
  void DeleteUnnamed();

  KubernetesObjects* const objects_;
  const std::string name_;
  const std::string writer_;
  const std::function<bool(absl::Duration)> pause_;
  const std::function<absl::Time()> deadline_;
  ValueParts parts_;
  v1::LogHead head_;
  std::string version_;     // of the head's object
  uint64_t segments_ = 0;   // made in this epoch
  uint64_t log_bytes_ = 0;  // of the named segments and the tail
  std::map<std::string, std::string> state_;
  uint64_t state_bytes_ = 0;
  uint64_t long_bytes_ = 0;  // a log that could not be compacted is tried again beyond this length
};

}  // namespace addend
