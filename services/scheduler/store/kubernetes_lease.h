// The election of a leader by a Lease of Kubernetes' API, as Kubernetes' own controllers do it.
//
// A leader renews the Lease. A candidate watches its resourceVersion by its own clock: if it has
// not changed for as long as the Lease says, the candidate replaces it, naming the version that it
// has seen, so that a single candidate succeeds. The leader counts from before each renewal, so it
// gives up earlier than any candidate may start; nobody compares clocks of two machines.
//
// Not thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/store/kubernetes_api.h"

namespace addend {

class KubernetesLease {
 public:
  // `holder` is unique. `ttl` is rounded up to seconds. `objects` must outlive it.
  KubernetesLease(KubernetesObjects* objects, std::string name, std::string holder,
                  absl::Duration ttl);

  // Whether this scheduler holds the Lease now; else `*other` is its holder (empty: nobody).
  absl::StatusOr<bool> TryToTake(absl::Time deadline, std::string* other);
  // ABORTED: another holder has it. UNAVAILABLE: to be tried again until end().
  absl::Status Renew(absl::Time deadline);
  // Lets the next candidate begin at once.
  void Release(absl::Time deadline);
  bool held() const { return !version_.empty(); }
  // Until then nobody else takes it.
  absl::Time end() const { return end_; }
  absl::Duration ttl() const { return ttl_; }

 private:
  // The Lease as `holder` has it now.
  nlohmann::json Object(const std::string& holder) const;
  // Replaces the Lease, of which `version` is the present version.
  absl::Status Write(nlohmann::json object, const std::string& version, absl::Time deadline);

  KubernetesObjects* const objects_;
  const std::string name_;
  const std::string holder_;
  const absl::Duration ttl_;
  std::string seen_;     // version of another holder's Lease
  absl::Time seen_at_;   // when it was seen first
  std::string version_;  // of the Lease that this scheduler holds; empty: it does not
  int64_t transitions_ = 0;
  std::string acquired_;  // when this scheduler took it, for people
  absl::Time end_ = absl::InfinitePast();
};

}  // namespace addend
