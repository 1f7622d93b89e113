// The election of a leader by a Lease.
#include "services/scheduler/store/kubernetes_lease.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/store/standby.h"

namespace addend {
namespace {

using nlohmann::json;

// What a Lease may say, which any account with the right can write.
constexpr int64_t kShortestSeconds = 1;
constexpr int64_t kLongestSeconds = 3600;

// For people who read the Lease; nothing here depends on it.
std::string Date() {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
}

}  // namespace

KubernetesLease::KubernetesLease(KubernetesObjects* objects, std::string name, std::string holder,
                                 absl::Duration ttl)
    : objects_(objects),
      name_(std::move(name)),
      holder_(std::move(holder)),
      ttl_(std::max(absl::Seconds(kShortestSeconds), absl::Ceil(ttl, absl::Seconds(1)))) {}

json KubernetesLease::Object(const std::string& holder) const {
  return {{"apiVersion", "coordination.k8s.io/v1"},
          {"kind", "Lease"},
          {"metadata", {{"name", name_}, {"labels", {{kStoreLabel, name_}}}}},
          {"spec",
           {{"holderIdentity", holder},
            {"leaseDurationSeconds", absl::ToInt64Seconds(ttl_)},
            {"acquireTime", acquired_},
            {"renewTime", Date()},
            {"leaseTransitions", transitions_}}}};
}

absl::Status KubernetesLease::Write(json object, const std::string& version, absl::Time deadline) {
  object["metadata"]["resourceVersion"] = version;
  const absl::Time asked = SteadyNow();
  ADDEND_ASSIGN_OR_RETURN(const json written,
                          objects_->Replace(ObjectKind::kLease, object, deadline));
  version_ = TextAt(written, "/metadata/resourceVersion");
  end_ = asked + ttl_;
  return absl::OkStatus();
}

absl::StatusOr<bool> KubernetesLease::TryToTake(absl::Time deadline, std::string* other) {
  const absl::Time asked = SteadyNow();
  auto lease = objects_->Get(ObjectKind::kLease, name_, deadline);
  if (absl::IsNotFound(lease.status())) {
    acquired_ = Date();
    lease = objects_->Create(ObjectKind::kLease, Object(holder_), deadline);
    if (absl::IsAlreadyExists(lease.status())) return false;
    ADDEND_RETURN_IF_ERROR(lease.status());
    version_ = TextAt(*lease, "/metadata/resourceVersion");
    end_ = asked + ttl_;
    return true;
  }
  ADDEND_RETURN_IF_ERROR(lease.status());
  const std::string version = TextAt(*lease, "/metadata/resourceVersion");
  const std::string holder = TextAt(*lease, "/spec/holderIdentity");
  transitions_ = NumberAt(*lease, "/spec/leaseTransitions");
  if (version != seen_) {
    seen_ = version;
    seen_at_ = SteadyNow();
  }
  const absl::Duration lasts = absl::Seconds(std::clamp(
      NumberAt(*lease, "/spec/leaseDurationSeconds"), kShortestSeconds, kLongestSeconds));
  // An earlier attempt of this scheduler may have succeeded without an answer.
  const bool free = holder.empty() || holder == holder_ || SteadyNow() - seen_at_ >= lasts;
  if (!free) {
    *other = holder;
    return false;
  }
  ++transitions_;
  acquired_ = Date();
  const absl::Status taken = Write(Object(holder_), version, deadline);
  if (absl::IsAborted(taken)) return false;
  ADDEND_RETURN_IF_ERROR(taken);
  return true;
}

absl::Status KubernetesLease::Renew(absl::Time deadline) {
  absl::Status renewed = Write(Object(holder_), version_, deadline);
  if (!absl::IsAborted(renewed)) return renewed;
  // Perhaps an earlier renewal, which got no answer, or somebody's new label.
  ADDEND_ASSIGN_OR_RETURN(const json lease, objects_->Get(ObjectKind::kLease, name_, deadline));
  if (TextAt(lease, "/spec/holderIdentity") != holder_) return AnotherLeads();
  return Write(Object(holder_), TextAt(lease, "/metadata/resourceVersion"), deadline);
}

void KubernetesLease::Release(absl::Time deadline) {
  if (!held()) return;
  Write(Object(""), version_, deadline).IgnoreError();  // it ends by itself
  version_.clear();
}

}  // namespace addend
