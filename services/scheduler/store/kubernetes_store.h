// The store for several schedulers in a Kubernetes cluster, or for a single scheduler without a
// volume: a Lease elects the leader, and Secrets hold the records.
//
// A leader that was deposed without knowing it writes nothing (kubernetes_log.h).
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "services/scheduler/store/kubernetes_api.h"
#include "services/scheduler/store/kubernetes_lease.h"
#include "services/scheduler/store/kubernetes_log.h"
#include "services/scheduler/store/stop_flag.h"
#include "services/scheduler/store/store.h"

namespace addend {

class KubernetesStore final : public Store {
 public:
  // `where`: [NAMESPACE/]NAME of the Lease and of the head Secret; empty: addend-scheduler in the
  // pod's namespace. INVALID_ARGUMENT names the error in it. Does not connect.
  static absl::StatusOr<std::unique_ptr<KubernetesStore>> Open(std::string_view where);
  KubernetesStore(std::shared_ptr<KubernetesObjects> objects, std::string name);
  ~KubernetesStore() override;

  absl::Status Lead(const Leadership& leadership) override;
  absl::StatusOr<std::vector<StoreEntry>> Load() override;
  absl::Status Apply(std::span<const StoreWrite> writes) override;
  std::string Describe() const override { return "kubernetes:" + name_; }

 private:
  void KeepLeading();
  absl::Time Deadline() const;

  const std::shared_ptr<KubernetesObjects> objects_;
  const std::string name_;
  Leadership leadership_;
  std::unique_ptr<KubernetesLease> lease_;  // the keeper's, once it runs
  std::unique_ptr<KubernetesLog> log_;

  StopFlag stop_;
  mutable Mutex mu_;
  absl::Time lease_end_ ABSL_GUARDED_BY(mu_);
  std::thread keeper_;
};

}  // namespace addend
