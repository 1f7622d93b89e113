// The store for several schedulers: etcd, in which a single scheduler at a time is the leader.
//
// Invariants
//  1. A write succeeds only while the leader's key is this process's own: a leader that was deposed
//     without knowing it writes nothing.
//  2. A batch that is too large for a transaction is written to a journal first. The next leader
//     carries out a complete journal and forgets an incomplete journal.
//
//  3. No request or answer is larger than etcd and gRPC take by default: the plan of a tensor with
//     a million partitions is, so that values are stored in parts.
//
// Keys, below the prefix: leader; record/KEY and record/KEY#PART; journal/NUMBER and
// journal.complete.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "services/scheduler/store/etcd_client.h"
#include "services/scheduler/store/store.h"
#include "services/scheduler/store/value_parts.h"

namespace addend {

class EtcdStore final : public Store {
 public:
  // `where`: HOST:PORT[,HOST:PORT...][/PREFIX], each perhaps with http:// in front, or https://
  // with an identity. `access`: all but the endpoints. INVALID_ARGUMENT names the error. Does not
  // connect.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(std::string_view where,
                                                         EtcdAccess access = {});
  ~EtcdStore() override;

  absl::Status Lead(const Leadership& leadership) override;
  absl::StatusOr<std::vector<StoreEntry>> Load() override;
  absl::Status Apply(std::span<const StoreWrite> writes) override;
  std::string Describe() const override { return "etcd:" + where_; }

 private:
  EtcdStore(std::string where, EtcdAccess access, std::string prefix);
  // Whether this process is the leader now; else `*leader` is.
  absl::StatusOr<bool> TryToLead(const std::string& name, std::string* leader);
  void KeepLeading();
  // A transaction, if this process leads. ABORTED: it does not lead any more.
  absl::Status Commit(std::vector<etcdserverpb::RequestOp> operations);
  absl::Status CommitAll(std::vector<etcdserverpb::RequestOp> operations);
  std::vector<StoreWrite> InParts(const std::vector<StoreWrite>& writes);
  absl::Status WriteByJournal(const std::vector<StoreWrite>& writes);
  absl::Status FinishJournal();
  absl::StatusOr<std::vector<StoreEntry>> Read(const std::string& prefix);
  std::string RecordKey(const std::string& key) const { return prefix_ + "record/" + key; }
  absl::Time Deadline() const;

  const std::string where_;
  const std::string prefix_;
  EtcdClient client_;
  ValueParts parts_;
  Leadership leadership_;
  int64_t lease_ = 0;
  absl::Duration ttl_;
  int64_t leader_revision_ = 0;  // when the leader's key was made; 0: not the leader

  mutable Mutex mu_;
  absl::Time lease_end_ ABSL_GUARDED_BY(mu_);  // by the time at which it was last asked for
  std::thread keeper_;
};

}  // namespace addend
